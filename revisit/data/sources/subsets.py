"""Nested subsets of the labelled images of a data set."""

from collections.abc import Sequence

import numpy as np

from revisit.data.sources.records import PRESENT, WITHOUT_LABELS, Records, labels_of, take
from revisit.data.sources.rows import Rows
from revisit.errors import UserError

BACKGROUND = "background"  # a field that is true of an image chosen to be learned from though it shows no object


def nested_subset(records: Records, count: int, seed: int, name: str) -> Records:
    """``count`` of the labelled records, in their order: the first of one order that depends on ``seed`` alone.

    A subset therefore contains all smaller ones of its seed. Where images have one class each, every class has its
    share of every subset, up to one image. An image without a box to learn from is not labelled.

    Raises:
        UserError: fewer labelled records; the message calls the data set ``name``.
    """
    labelled = _labelled(records)
    if count > len(labelled):
        message = f"data set {name!r} has {len(labelled):,} labelled images"
        raise UserError(f"{message}: expected at most as many, not {count:,}")
    rng = np.random.default_rng(seed)
    order = rng.permutation(labelled)
    labels = labels_of(records)
    if labels is not None:
        spread = evenly_spread(labels[order], np.ones(len(order)), rng)
        order = order[np.argsort(spread, kind="stable")]
    return take(records, np.sort(order[:count]))


def evenly_spread(classes: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(N,) places from 0 to 1, over which the members of each class are spread evenly, in their order.

    Args:
        classes: (N,) of the members.
        weights: (N,) above 0, how much of its class a member is.
    """
    spread = np.empty(len(classes))
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        each = weights[members]
        spread[members] = (np.cumsum(each) - each + rng.random() * each) / each.sum()
    return spread


def _labelled(records: Records) -> Sequence[int]:
    """Which records are labelled: all Rows, which have a class each or none."""
    if isinstance(records, Rows):
        return range(len(records))
    return [index for index, record in enumerate(records) if is_labelled(record)]


def objects_of(record: dict) -> list[dict]:
    """The annotations of a record, without those of crowds."""
    return [each for each in record.get("annotations", ()) if not each.get("iscrowd", 0)]


def classes_shown(record: dict) -> list[int]:
    """The class of each object that is to be found, or those of the image."""
    boxes = [box["category_id"] for box in objects_of(record)]
    of_image = [label for label, presence in enumerate(record.get("labels", ())) if presence == PRESENT]
    label = record.get("label", -1)
    return boxes + of_image + ([label] if label >= 0 else [])


def are_numbers(*texts: str) -> bool:
    """Whether parts of a data set's name are whole numbers, 0 or more."""
    return all(text.isascii() and text.isdecimal() for text in texts)


def is_looked_at(record: dict) -> bool:
    """Whether somebody has labelled it, perhaps with nothing: boxes of an image may be none, unless its layout has a
    file of labels for each image, and none for this one."""
    return not record.get(WITHOUT_LABELS) and ("annotations" in record or is_labelled(record))


def is_labelled(record: dict) -> bool:
    """Whether there is something to learn from: of boxes, one that is not of a crowd, or that there is none."""
    if "annotations" in record:
        return BACKGROUND in record or any(not box.get("iscrowd", 0) for box in record["annotations"])
    return record.get("label", 0) >= 0
