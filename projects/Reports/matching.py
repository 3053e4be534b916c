"""Which boxes of a detector are right: found, missed and wrong ones, precision over recall, and what is confused."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from revisit.boxes.boxes import IOU, NOTHING, Boxes, iou, matched
from revisit.data.sources.records import as_scored

IGNORED = -2  # instead of the number of a true box: it lies in a crowd
RECALLS = np.linspace(0, 1, 101)  # at which COCO averages precision


class JudgedImage(NamedTuple):
    """A test image with its true boxes, without crowds, and the predicted ones, the highest score first."""

    record: Mapping[str, object]
    truth: Boxes
    predicted: Boxes
    match: np.ndarray  # (predictions,) int: the true box of the same class that each has found, NOTHING or IGNORED
    overlap: np.ndarray  # (predictions, true boxes) IoU

    def missed(self, threshold: float) -> np.ndarray:
        """(true boxes,) bool: no prediction that scores at least this has found it."""
        found = self.match[self.predicted.scores >= threshold]
        return ~np.isin(np.arange(len(self.truth)), found)

    def wrong(self, threshold: float) -> np.ndarray:
        """(predictions,) bool: it scores at least this, and has found nothing."""
        return (self.match == NOTHING) & (self.predicted.scores >= threshold)

    def errors(self, threshold: float) -> int:
        return int(self.missed(threshold).sum() + self.wrong(threshold).sum())


def judge(record: Mapping[str, object], found: Boxes) -> JudgedImage:
    """Match what was found in an image, with classes counted as the record counts them, to its truth.

    As in COCO's evaluation: of each class, the highest score first, each prediction finds the free true box that it
    overlaps most, by an IoU of at least IOU. What lies in a crowd counts neither way.
    """
    annotations = record.get("annotations", [])
    truth, predicted = Boxes.of_annotations(annotations), found[found.best_first()]
    crowds = np.array([as_scored(each).get("iscrowd", 0) for each in annotations], bool)
    overlap = iou(predicted.xyxy, truth.xyxy, crowds)
    same = (predicted.classes[:, None] == truth.classes) * overlap
    match = matched(same[:, ~crowds])
    in_crowd = (same[:, crowds] >= IOU).any(axis=1)
    match[(match == NOTHING) & in_crowd] = IGNORED
    return JudgedImage(record, truth[~crowds], predicted, match, overlap[:, ~crowds])


class Curve(NamedTuple):
    """Precision over recall, of a class or of all; one entry for each prediction, the highest score first."""

    recall: np.ndarray  # 0..1
    precision: np.ndarray  # 0..1
    scores: np.ndarray

    def average_precision(self) -> float:
        """COCO's AP50: the mean of the precision that is reached at each of RECALLS or beyond it."""
        reached = np.maximum.accumulate(self.precision[::-1])[::-1]
        places = np.searchsorted(self.recall, RECALLS)
        return float(np.append(reached, 0.0)[places].mean())


def curve(images: Sequence[JudgedImage], number: int | None = None) -> Curve | None:
    """Of the class with this number, or of all together; None without truth."""
    of_class = [(_is_of(image.truth, number), _is_of(image.predicted, number)) for image in images]
    total = sum(int(true.sum()) for true, _ in of_class)
    if not total:
        return None
    pairs = [(image.predicted.scores[of], image.match[of]) for image, (_, of) in zip(images, of_class, strict=True)]
    scores, match = map(np.concatenate, zip(*pairs, strict=True))
    order = np.argsort(-scores, kind="stable")
    order = order[match[order] != IGNORED]
    found = np.cumsum(match[order] >= 0)
    return Curve(found / total, found / np.arange(1, len(order) + 1), scores[order])


def _is_of(objects: Boxes, number: int | None) -> np.ndarray:
    return np.ones(len(objects), bool) if number is None else objects.classes == number


def best_threshold(images: Sequence[JudgedImage]) -> float:
    """The score from which on predictions of all classes have the highest F1, the harmonic mean of precision and
    recall; 0 where none is right."""
    of_all = curve(images)
    if of_all is None or not of_all.recall.any():
        return 0.0
    ends = np.append(np.diff(of_all.scores) < 0, True)  # equal scores stay together
    f1 = 2 * of_all.precision * of_all.recall / np.maximum(of_all.precision + of_all.recall, 1e-12)
    return float(of_all.scores[np.argmax(f1 * ends)])


def confusion(images: Sequence[JudgedImage], threshold: float, count: int) -> np.ndarray:
    """(count + 1, count + 1) int: true boxes by their class and by the class of the prediction that lies on them.

    What is left of the predictions from ``threshold`` on is matched to what is left of the truth, whatever the class.
    The last row has predictions where nothing is, the last column true boxes on which no prediction lies.
    """
    table = np.zeros((count + 1, count + 1), int)
    for image in images:
        right = (image.match >= 0) & (image.predicted.scores >= threshold)
        np.add.at(table, (image.predicted.classes[right],) * 2, 1)
        wrong, missed = np.flatnonzero(image.wrong(threshold)), np.flatnonzero(image.missed(threshold))
        taken = matched(image.overlap[np.ix_(wrong, missed)])
        lies = taken >= 0
        true = image.truth.classes[missed]
        rows = np.where(lies, np.append(true, count)[taken], count)
        np.add.at(table, (rows, image.predicted.classes[wrong]), 1)
        alone = np.delete(true, taken[lies])
        np.add.at(table, (alone, np.full(len(alone), count)), 1)
    return table
