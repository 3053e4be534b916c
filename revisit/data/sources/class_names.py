"""Classes by name: data sets that are scored against each other count them alike, or are refused."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from revisit.data.sources.catalog import get_records, register
from revisit.data.sources.records import Records
from revisit.errors import UserError, first_few

from detectron2.data import DatasetCatalog, MetadataCatalog

# Metadata that go by the number of a class: names, and which number an id in a file has.
IDS = "thing_dataset_id_to_contiguous_id"
BY_NUMBER = ("stuff_classes", "thing_classes", IDS)

# Of data sets that follow another one: their own loader, and their own metadata of BY_NUMBER.
_ORIGINALS: dict[str, tuple[Callable[[], Records], dict]] = {}

logger = logging.getLogger(__name__)


def share_classes(
    leader: str, followers: Iterable[str], num_classes: int | None = None, *, names: Sequence[str] = ()
) -> None:
    """In this process, let all ``followers`` count their classes as ``leader`` does, from their next loading on.

    The same names in another order are mapped, in the records and in what Detectron2's evaluators use. Boxes and masks
    may lack some of the leader's classes. Other names are a UserError when the follower is loaded, and for masks, whose
    ids stand in files, so is another order. Data sets without names are compared by how many classes they have. A
    leader that is not there, or has not the model's ``num_classes``, is not what it was trained on: not compared with.

    Args:
        leader: a data set, or with ``names``, its classes by their numbers, whatever has these, such as a checkpoint.
    """
    if not names:
        unshare_classes(leader)
    for name in followers:
        if name != leader:
            unshare_classes(name)
            metadata = vars(MetadataCatalog.get(name))
            own = {key: metadata[key] for key in BY_NUMBER if key in metadata}
            _ORIGINALS[name] = DatasetCatalog[name], own
            DatasetCatalog[name] = partial(_load_as, leader, name, num_classes, names)


def unshare_classes(name: str) -> None:
    """Let a data set count its classes by itself again."""
    register(name)
    if name in _ORIGINALS:
        DatasetCatalog[name], own = _ORIGINALS.pop(name)
        _set_by_number(name, own)


def names_of(name: str) -> list[str]:
    """A data set's classes by their numbers, as its metadata say; [] where they do not."""
    metadata = MetadataCatalog.get(name)
    return list(metadata.get("thing_classes") or metadata.get("stuff_classes") or [])


def places_by_name(own: Sequence[str], wanted: Sequence[str], names: tuple[str, str]) -> list[int]:
    """The place in ``wanted`` of each of ``own``; ``names`` are those of who counts so, for the message.

    Raises:
        UserError: they are not the same names, or a name stands for two classes.
    """
    if sorted(own) == sorted(wanted) and len(set(own)) == len(own):
        return [list(wanted).index(name) for name in own]
    sides = [
        f"; only {name} has {first_few(missing)}"
        for name, classes, others in ((names[0], own, wanted), (names[1], wanted, own))
        if (missing := [str(label) for label in classes if label not in others])
    ]
    message = f"{names[0]!r} and {names[1]!r} have different classes, {len(own)} and {len(wanted)}{''.join(sides)}"
    raise UserError(f"{message}. A score compares classes by name: expected the same, each once, in any order")


def renumbered(records: Records, places: Sequence[int]) -> Records:
    """The records with class n counted as class ``places[n]``: in ``label``, ``labels`` and ``annotations``."""
    changed = [dict(record) for record in records]
    for record in changed:
        if record.get("label", -1) >= 0:
            record["label"] = places[record["label"]]
        if "labels" in record:
            record["labels"] = tuple(record["labels"][places.index(number)] for number in range(len(places)))
        if "annotations" in record:
            record["annotations"] = [{**a, "category_id": places[a["category_id"]]} for a in record["annotations"]]
    return changed


def _set_by_number(name: str, values: dict) -> dict:
    """The data set's metadata, of which those of BY_NUMBER become ``values``."""
    metadata = vars(MetadataCatalog.get(name))  # its set() refuses changes
    for key in BY_NUMBER:
        metadata.pop(key, None)
    metadata.update(values)
    return metadata


def _load_as(leader: str, name: str, num_classes: int | None, names: Sequence[str]) -> Records:
    """The records of a data set with its leader's classes; its metadata change too."""
    load, by_number = _ORIGINALS[name]
    metadata = _set_by_number(name, by_number)
    records = load()
    first = records[0] if records else {}
    masks = "sem_seg_file_name" in first and "annotations" not in first
    if not masks and not first.keys() & {"annotations", "label", "labels"}:
        return records
    key = "stuff_classes" if masks else "thing_classes"
    own, wanted = _classes_of(name, key, records), list(names) or _wanted(leader, name, key, num_classes)
    if own and (masks or "annotations" in first) and set(own) <= set(wanted):
        own = metadata[key] = _with_rare_classes(own, wanted, metadata)
    unnamed = int in map(type, own + wanted)
    if not own or not wanted or own == wanted or (unnamed and len(own) == len(wanted)):
        return records
    places = places_by_name(own, wanted, (name, leader))
    if masks:
        message = (
            f"{name!r} and {leader!r} have their classes in different orders, {first_few(own)} and {first_few(wanted)}"
        )
        raise UserError(f"{message}, and the ids stand in files of masks: expected the same order")
    logger.info(f"classes of {name} are in another order than those of {leader}: mapped by their names")
    metadata["thing_classes"] = wanted
    if ids := metadata.get(IDS):
        metadata[IDS] = {id_: places[n] for id_, n in ids.items()}
    return renumbered(records, places)


def _with_rare_classes(own: list, wanted: list, metadata: dict) -> list:
    """A data set's classes, and after them those of its leader that it lacks, with ids that no box has."""
    if ids := metadata.get(IDS):
        free = range(max(ids) + 1, max(ids) + 1 + len(wanted))
        metadata[IDS] = ids | dict(zip(free, range(len(own), len(wanted)), strict=False))
    return own + [label for label in wanted if label not in own]


def _wanted(leader: str, name: str, key: str, num_classes: int | None) -> list:
    """The leader's classes; none where it is not to be compared with."""
    try:
        wanted = MetadataCatalog.get(leader).get(key) or _classes_of(leader, key, get_records(leader))
    except UserError as error:
        if num_classes is None:
            raise
        why = str(error)
    else:
        if num_classes in (None, len(wanted)):
            return list(wanted)
        why = f"it has {len(wanted)}, but the model {num_classes}: set DATASETS.TRAIN to what it was trained on"
    logger.warning(f"classes of {name} are not compared with those of {leader}: {why}")
    return []


def _classes_of(name: str, key: str, records: Records) -> list:
    """The names of a data set's classes, or their numbers, as many as the labels of its records ask for."""
    count = max((len(r["labels"]) if "labels" in r else r.get("label", -1) + 1 for r in records), default=0)
    return list(MetadataCatalog.get(name).get(key) or range(count))
