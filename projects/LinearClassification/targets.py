"""Labels of a data set, one class per image or several, and the average precisions of the scores for one class."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from revisit.data.catalog import get_records
from revisit.data.classification_datasets import DIFFICULT, PRESENT
from revisit.errors import UserError, expect

Labelled = tuple[np.ndarray, np.ndarray]  # features and targets


class LabelledSet(NamedTuple):
    """A data set and its (N,) int64 classes, or (N, T) int64 of 1, 0 (difficult) and -1 where images show several."""

    name: str
    records: list[dict]
    targets: np.ndarray


def read_set(name: str) -> LabelledSet:
    """A data set by name. Raises UserError where records have no labels, or are all of one class."""
    records = get_records(name)
    key = "labels" if "labels" in records[0] else "label"
    labelled = all(key in record for record in records)
    expect(labelled, f"data set {name!r} has no labels: expected class folders, or a data set by name")
    targets = np.array([record[key] for record in records])
    several = targets.ndim > 1 or len(np.unique(targets)) > 1
    expect(several, f"data set {name!r} has only one class: expected two or more")
    return LabelledSet(name, records, targets)


def check_classes(train: np.ndarray, test: np.ndarray, names: tuple[str, str]) -> None:
    """Raises UserError if a class of the test images has no training image, or the two differ in their classes."""
    alike = train.ndim == test.ndim and train.shape[1:] == test.shape[1:]
    expect(alike, f"{names[0]} and {names[1]} have different classes: expected the same")
    if train.ndim == 1:
        unseen = np.setdiff1d(test, train)
        if len(unseen):
            raise UserError(f"class {unseen[0]} of {names[1]} has no image in {names[0]}: expected some of every class")
        return
    for data, name in zip((train, test), names, strict=True):
        empty = np.flatnonzero(~(data == PRESENT).any(axis=0))
        if len(empty):
            raise UserError(f"no image of {name} shows class {empty[0]}: expected some of every class")


def columns(
    rows: np.ndarray, targets: np.ndarray, difficult_is_absent: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each class of (N, T) targets: the (M, C) rows of the images that count, and which of them show it."""
    for column in targets.T:
        counted = np.ones(len(column), bool) if difficult_is_absent else column != DIFFICULT
        yield (rows if counted.all() else rows[counted]), column[counted] == PRESENT


def eleven_point_ap(scores: np.ndarray, present: np.ndarray) -> float:
    """VOC2007's AP in percent: the mean over recalls 0, .1, ..., 1 of the best precision from there on."""
    precision, recall = _curve(scores, present)
    return 100 * float(np.mean([precision[recall >= level - 1e-12].max(initial=0) for level in np.linspace(0, 1, 11)]))


def envelope_ap(scores: np.ndarray, present: np.ndarray) -> float:
    """The area in percent under the precision that is best from each recall on."""
    precision, recall = _curve(scores, present)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return 100 * float(np.sum(np.diff(recall, prepend=0) * best))


def _curve(scores: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall after each image, highest score first; the earlier of equal ones."""
    hits = present[np.argsort(-scores, kind="stable")]
    found = np.cumsum(hits)
    return found / np.arange(1, len(hits) + 1), found / found[-1]
