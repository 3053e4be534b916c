"""Classes by name: data sets that are scored against each other count them alike, or are refused."""

import logging
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from revisit.data.sources.file_names import in_normal_form
from revisit.data.sources.layouts import LabelledSet
from revisit.data.sources.records import Records
from revisit.errors import UserError, first_few

from detectron2.data import MetadataCatalog

# Metadata that go by the number of a class: names, and which number an id in a file has.
IDS = "thing_dataset_id_to_contiguous_id"
BY_NUMBER = ("stuff_classes", "thing_classes", IDS)

logger = logging.getLogger(__name__)


class ClassOrder(NamedTuple):
    """Whose classes a data set counts by.

    Attributes:
        leader: a data set, or with ``names`` whatever has these, such as a checkpoint.
        num_classes: of the model. A leader with another number is not what it was trained on: not compared with.
        names: classes by their numbers.
    """

    leader: str
    num_classes: int | None = None
    names: Sequence[str] = ()


def names_of(name: str) -> list[str]:
    """A data set's classes by their numbers, as its metadata say; [] where they do not."""
    metadata = MetadataCatalog.get(name)
    return list(metadata.get("thing_classes") or metadata.get("stuff_classes") or [])


def class_metadata(name: str) -> dict:
    """The metadata of a data set that go by the number of a class."""
    metadata = vars(MetadataCatalog.get(name))
    return {key: metadata[key] for key in BY_NUMBER if key in metadata}


def key_of_classes(records: Records) -> str:
    """Which metadata name the classes of records; "" of records without labels."""
    first = records[0] if records else {}
    if "sem_seg_file_name" in first and "annotations" not in first:
        return "stuff_classes"
    return "thing_classes" if first.keys() & {"annotations", "label", "labels"} else ""


def classes_of(own: LabelledSet) -> list:
    """The names of a data set's classes, or their numbers, as many as the labels of its records ask for."""
    names = own.metadata.get(key_of_classes(own.records))
    if names:
        return list(names)
    count = max(map(_least_classes, own.records), default=0)
    return list(range(count))


def _least_classes(record: dict) -> int:
    """How many classes there are at least, by the labels of a record."""
    if "labels" in record:
        return len(record["labels"])
    return record.get("label", -1) + 1


def counted_by(own: LabelledSet, wanted: Sequence, name: str, leader: str) -> LabelledSet:
    """The records and class metadata of the data set ``name``, its classes counted as ``wanted``, the ``leader``'s.

    Raises:
        UserError: other classes, or for masks another order.
    """
    records, metadata = own.records, dict(own.metadata)
    key = key_of_classes(records)
    classes = stated = _spelled_as(wanted, classes_of(own))
    may_lack_some = key == "stuff_classes" or "annotations" in records[0]
    if classes and may_lack_some and set(classes) <= set(wanted):
        metadata |= _with_rare_classes(classes, wanted, key, metadata)
        classes = metadata[key]
    are_compared = classes and wanted and not _differ_in_names_alone(classes, wanted)
    if not are_compared or classes == list(wanted):
        return LabelledSet(records, metadata)
    index = index_by_name(classes, wanted, (name, leader))
    if key == "stuff_classes":
        orders = f"{first_few(classes)} and {first_few(wanted)}"
        message = f"{name!r} and {leader!r} have their classes in different orders, {orders}"
        raise UserError(f"{message}, and the ids stand in files of masks: expected the same order")
    _log_another_order(index[: len(stated)], name, leader)
    metadata["thing_classes"] = list(wanted)
    if ids := metadata.get(IDS):
        metadata[IDS] = {id_: index[n] for id_, n in ids.items()}
    return LabelledSet([_renumbered(record, index) for record in records], metadata)


def _log_another_order(places: list[int], name: str, leader: str) -> None:
    """Unless the classes that a data set has stand in the leader's order: then it only lacks some."""
    if sorted(places) != places:
        logger.info(f"classes of {name} are in another order than those of {leader}: mapped by their names")


def _differ_in_names_alone(classes: Sequence, wanted: Sequence) -> bool:
    """Whether one of the two has numbers in place of names, and as many as the other."""
    types = {type(label) for label in (*classes, *wanted)}
    return len(classes) == len(wanted) and int in types


def _with_rare_classes(classes: list, wanted: Sequence, key: str, metadata: dict) -> dict:
    """Metadata with those of ``wanted`` after the own classes that these lack, with ids that no box has."""
    lacking = [label for label in wanted if label not in classes]
    complete = {key: classes + lacking}
    ids = metadata.get(IDS)
    if ids:
        complete[IDS] = ids | dict(zip(_free_ids(ids, len(lacking)), range(len(classes), len(wanted)), strict=True))
    return complete


def _free_ids(ids: Collection, count: int) -> list:
    """So many that are not among ``ids``, after them, and texts or numbers as they are: evaluators sort all."""
    if any(isinstance(id_, str) for id_ in ids):
        last = max(map(str, ids))
        return [f"{last} {n}" for n in range(count)]
    return [math.floor(max(ids)) + 1 + n for n in range(count)]


def index_by_name(own: Sequence[str], wanted: Sequence[str], names: tuple[str, str]) -> list[int]:
    """The index in ``wanted`` of each of ``own``; ``names`` are those of who counts so, for the message.

    Raises:
        UserError: they are not the same names, or a name stands for two classes.
    """
    are_clear = len(set(own)) == len(own)
    if are_clear and sorted(own) == sorted(wanted):
        places = {name: index for index, name in enumerate(wanted)}
        return [places[name] for name in own]
    us, them = names
    sides = _lacking(us, own, wanted) + _lacking(them, wanted, own)
    message = f"{us!r} and {them!r} have different classes, {len(own)} and {len(wanted)}{sides}"
    raise UserError(f"{message}. A score compares classes by name: expected the same, each once, in any order")


def _spelled_as(wanted: Sequence, own: Sequence) -> list:
    """``own``, each as ``wanted`` has it where the two differ in Unicode's normal form alone, and so look alike."""
    spelling = {in_normal_form(str(label)): label for label in wanted}
    return [spelling.get(in_normal_form(label), label) if isinstance(label, str) else label for label in own]


def _lacking(name: str, classes: Sequence, others: Sequence) -> str:
    missing = [str(label) for label in classes if label not in others]
    return f"; only {name} has {first_few(missing)}" if missing else ""


def _renumbered(record: dict, index: Sequence[int]) -> dict:
    """The record with class n counted as class ``index[n]``: in ``label``, ``labels`` and ``annotations``."""
    changed = dict(record)
    label = record.get("label", -1)
    if label >= 0:
        changed["label"] = index[label]
    if "labels" in record:
        changed["labels"] = tuple(record["labels"][number] for number in np.argsort(index))
    if "annotations" in record:
        changed["annotations"] = []
        for annotation in record["annotations"]:
            number = index[annotation["category_id"]]
            changed["annotations"].append({**annotation, "category_id": number})
    return changed


def names_or_numbers(names: Sequence[str], count: int) -> list[str]:
    """``names`` where they are those of ``count`` classes, else ``class 0`` and so on."""
    return list(names) if len(names) == count else [f"class {n}" for n in range(count)]
