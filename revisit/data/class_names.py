"""Classes by name: data sets that are scored against each other count them alike, or are refused."""

import logging
from collections.abc import Callable, Iterable, Sequence

from revisit.data.catalog import get_records, register
from revisit.data.records import Records
from revisit.errors import UserError, expect, some

from detectron2.data import DatasetCatalog, MetadataCatalog

# What Detectron2 keeps by the number of a class: names, colours, and the numbers of the ids in a file.
BY_NUMBER = ("stuff_classes", "thing_classes", "thing_colors", "thing_dataset_id_to_contiguous_id")

logger = logging.getLogger(__name__)


def share_classes(leader: str, followers: Iterable[str], num_classes: int | None = None) -> None:
    """In this process, let all ``followers`` count their classes as ``leader`` does, from their next loading on.

    The same names in another order are mapped, in the records and in what Detectron2's evaluators know. Other names
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
        own, wanted = classes_of(self.name, key, records), self._wanted(key)
        if self._metadata.get("classes_are_those_seen") and isinstance(own, list) and isinstance(wanted, list):
            own = own + [name for name in wanted if name not in own]  # a small test set may show fewer
            self._metadata[key] = own
        if not own or not wanted or own == wanted:
            return records
        if isinstance(own, int) or isinstance(wanted, int):
            numbers = tuple(names if isinstance(names, int) else len(names) for names in (own, wanted))
            found = f"{self.name!r} and {self.leader!r} have different classes: {numbers[0]} and {numbers[1]} of them"
            expect(numbers[0] == numbers[1], f"{found}, one of the two without names: expected the same classes")
            return records
        places = places_by_name(own, wanted, (self.name, self.leader))
        expect(
            not masks,
            f"{self.name!r} and {self.leader!r} have different classes: the same names in another order "
            f"({first_difference(own, wanted)}), but the ids stand in the files of the masks: expected the same order",
        )
        logger.info(f"classes of {self.name} are in another order than those of {self.leader}: mapped by their names")
        self._renumber(own, wanted, places)
        return [_renumbered(record, places) for record in records]

    def _wanted(self, key: str) -> list[str] | int | None:
        """The leader's classes; None where it is not to be compared with."""
        known = MetadataCatalog.get(self.leader).get(key)
        try:
            wanted = list(known) if known else classes_of(self.leader, key, get_records(self.leader))
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

    def _renumber(self, own: list[str], wanted: list[str], places: list[int]) -> None:
        changed = {"thing_classes": wanted}
        if colors := self._metadata.get("thing_colors"):
            changed["thing_colors"] = [colors[places.index(number)] for number in range(len(own))]
        if ids := self._metadata.get("thing_dataset_id_to_contiguous_id"):
            changed["thing_dataset_id_to_contiguous_id"] = {id_: places[number] for id_, number in ids.items()}
        self._metadata.update(changed)


def classes_of(name: str, key: str, records: Records) -> list[str] | int:
    """The names of a data set's classes, or how many there are by the labels of its records; 0 is unknown."""
    if names := MetadataCatalog.get(name).get(key):
        return list(names)
    return max((len(r["labels"]) if "labels" in r else r.get("label", -1) + 1 for r in records), default=0)


def places_by_name(own: Sequence[str], wanted: Sequence[str], names: tuple[str, str]) -> list[int]:
    """The place of each of ``own`` in ``wanted``.

    Args:
        names: of the two data sets, for the message.

    Raises:
        UserError: they are not the same names, or one of them stands for two classes.
    """
    twice = next((name for name in own if list(own).count(name) > 1), None)
    if set(own) == set(wanted) and len(own) == len(wanted) and twice is None:
        return [list(wanted).index(name) for name in own]
    sides = [
        f"only the {which} has {some(missing)}"
        for which, classes, others in (("first", own, wanted), ("second", wanted, own))
        if (missing := [str(label) for label in classes if label not in others])
    ]
    raise UserError(
        f"{names[0]!r} and {names[1]!r} have different classes, {len(own)} and {len(wanted)}: "
        f"{'; '.join(sides) or f'{twice or own[0]} stands for several'}. A score compares classes by name: expected "
        "the same names, in any order"
    )


def first_difference(own: Sequence[str], wanted: Sequence[str]) -> str:
    """In words."""
    number = next(n for n, pair in enumerate(zip(own, wanted, strict=True)) if pair[0] != pair[1])
    return f"class {number} is {own[number]} and {wanted[number]}"


def _renumbered(record: dict, places: list[int]) -> dict:
    record = dict(record)
    if record.get("label", -1) >= 0:
        record["label"] = places[record["label"]]
    if "labels" in record:
        record["labels"] = tuple(record["labels"][places.index(number)] for number in range(len(places)))
    if "annotations" in record:
        record["annotations"] = [{**a, "category_id": places[a["category_id"]]} for a in record["annotations"]]
    return record
