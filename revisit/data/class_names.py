"""Classes by name: data sets that are scored against each other count them alike, or are refused."""

import logging
from collections.abc import Callable, Iterable, Sequence

from revisit.data.catalog import get_records, register
from revisit.data.records import Records
from revisit.errors import UserError, some

from detectron2.data import DatasetCatalog, MetadataCatalog

# Metadata that go by the number of a class: names, and which number an id in a file has.
BY_NUMBER = ("stuff_classes", "thing_classes", "thing_dataset_id_to_contiguous_id")

logger = logging.getLogger(__name__)


def share_classes(leader: str, followers: Iterable[str], num_classes: int | None = None) -> None:
    """In this process, let all ``followers`` count their classes as ``leader`` does, from their next loading on.

    The same names in another order are mapped, in the records and in what Detectron2's evaluators use. Other names
    are a UserError when the follower is loaded, and for masks, whose ids stand in files, so is another order. Data
    sets without names are compared by how many classes they have.

    Args:
        num_classes: of the model. A leader with another number, or one that is not there, is not what the model was
            trained on, and is not compared with.
    """
    _leave(leader)
    for name in followers:
        if name != leader:
            _leave(name)
            load = DatasetCatalog.pop(name)
            DatasetCatalog.register(name, _Follower(name, leader, load, num_classes))


def places_by_name(own: Sequence[str], wanted: Sequence[str], names: tuple[str, str]) -> list[int]:
    """The place in ``wanted`` of each of ``own``: the number that a class of one's own has there.

    Args:
        names: of those who count so, for the message.

    Raises:
        UserError: they are not the same names, or a name stands for two classes.
    """
    if sorted(own) == sorted(wanted) and len(set(own)) == len(own):
        return [list(wanted).index(name) for name in own]
    sides = [
        f"; only {name} has {some(missing)}"
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


def _leave(name: str) -> None:
    """Let a data set count its classes by itself again."""
    register(name)
    load = DatasetCatalog[name]
    if isinstance(load, _Follower):
        load.restore()
        DatasetCatalog[name] = load.load


class _Follower:
    """The loader of a data set with another one's classes; it changes the metadata of its own."""

    def __init__(self, name: str, leader: str, load: Callable[[], Records], num_classes: int | None):
        self.name, self.leader, self.load, self.num_classes = name, leader, load, num_classes
        self._metadata = vars(MetadataCatalog.get(name))  # its set() refuses changes
        self._own = {key: value for key, value in self._metadata.items() if key in BY_NUMBER}

    def restore(self) -> None:
        for key in BY_NUMBER:
            self._metadata.pop(key, None)
        self._metadata.update(self._own)

    def __call__(self) -> Records:
        self.restore()
        records = self.load()
        first = records[0] if records else {}
        masks = "sem_seg_file_name" in first and "annotations" not in first
        if not masks and not first.keys() & {"annotations", "label", "labels"}:
            return records
        key = "stuff_classes" if masks else "thing_classes"
        own, wanted = _classes_of(self.name, key, records), self._wanted(key)
        if self._metadata.get("classes_are_those_seen") and isinstance(own, list) and isinstance(wanted, list):
            own = own + [name for name in wanted if name not in own]  # a small test set may show fewer
            self._metadata[key] = own
        if not own or not wanted or own == wanted:
            return records
        if isinstance(own, int) or isinstance(wanted, int):
            counts = [names if isinstance(names, int) else len(names) for names in (own, wanted)]
            if counts[0] == counts[1]:
                return records
            message = f"{self.name!r} and {self.leader!r} have different classes, {counts[0]} and {counts[1]}"
            raise UserError(f"{message}, one of the two without names: expected the same classes")
        places = places_by_name(own, wanted, (self.name, self.leader))
        if masks:
            number = next(n for n, place in enumerate(places) if n != place)
            message = f"{self.name!r} and {self.leader!r} have different classes: {number} is {own[number]} and"
            raise UserError(f"{message} {wanted[number]}, and the ids stand in files of masks: expected the same order")
        logger.info(f"classes of {self.name} are in another order than those of {self.leader}: mapped by their names")
        self._metadata["thing_classes"] = wanted
        if ids := self._metadata.get("thing_dataset_id_to_contiguous_id"):
            self._metadata["thing_dataset_id_to_contiguous_id"] = {id_: places[n] for id_, n in ids.items()}
        return renumbered(records, places)

    def _wanted(self, key: str) -> list[str] | int | None:
        """The leader's classes; None where it is not to be compared with."""
        try:
            names = MetadataCatalog.get(self.leader).get(key)
            wanted = list(names) if names else _classes_of(self.leader, key, get_records(self.leader))
        except UserError as error:
            if self.num_classes is None:
                raise
            logger.warning(f"classes of {self.name} are not compared with those of {self.leader}: {error}")
            return None
        count = wanted if isinstance(wanted, int) else len(wanted)
        if self.num_classes in (None, count):
            return wanted
        logger.warning(
            f"classes of {self.name} are not compared with those of {self.leader}, which has {count}, but the model "
            f"{self.num_classes}: give the data set that it was trained on as DATASETS.TRAIN"
        )
        return None


def _classes_of(name: str, key: str, records: Records) -> list[str] | int:
    """The names of a data set's classes, or how many there are by the labels of its records; 0 is unknown."""
    if names := MetadataCatalog.get(name).get(key):
        return list(names)
    return max((len(r["labels"]) if "labels" in r else r.get("label", -1) + 1 for r in records), default=0)
