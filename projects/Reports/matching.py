"""Which boxes of a detector are right: found, missed and wrong ones, precision over recall, and what is confused."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from pycocotools import mask

from projects.Predict.prediction_sheet import Detections

from detectron2.structures import BoxMode

IOU = 0.5  # from which on a box is found
NOTHING, IGNORED = -1, -2  # instead of the number of a true box: there is none; it lies in a crowd
RECALLS = np.linspace(0, 1, 101)  # at which COCO averages precision


class JudgedImage(NamedTuple):
    """A test image with its true boxes, without crowds, and the predicted ones, the highest score first."""

    record: Mapping[str, object]
    truth: Detections
    predicted: Detections
    match: np.ndarray  # (predictions,) int: the true box of the same class that each has found, NOTHING or IGNORED
    overlap: np.ndarray  # (predictions, true boxes) IoU

    def missed(self, threshold: float) -> np.ndarray:
        """(true boxes,) bool: no prediction that scores at least this has found it."""
        found = self.match[self.predicted.scores >= threshold]
        return ~np.isin(np.arange(len(self.truth.boxes)), found)

    def wrong(self, threshold: float) -> np.ndarray:
        """(predictions,) bool: it scores at least this, and has found nothing."""
        return (self.match == NOTHING) & (self.predicted.scores >= threshold)

    def errors(self, threshold: float) -> int:
        return int(self.missed(threshold).sum() + self.wrong(threshold).sum())


def judge(record: Mapping[str, object], results: Sequence[Mapping[str, object]]) -> JudgedImage:
    """Match the results of an image, in COCO's format with classes counted as the record counts them, to its truth.

    As in COCO's evaluation: of each class, the highest score first, each prediction finds the free true box that it
    overlaps most, by an IoU of at least IOU. What lies in a crowd counts neither way.
    """
    true = [_box_of(annotation) for annotation in record.get("annotations", [])]
    results = sorted(results, key=lambda result: -result["score"])
    boxes, classes = _arrays([(result["bbox"], result["category_id"], 0) for result in results])
    true_boxes, true_classes = _arrays(true)
    crowds = np.array([is_crowd for *_, is_crowd in true], bool)
    overlap = np.zeros((len(results), len(true)))
    if overlap.size:
        overlap = mask.iou(boxes, true_boxes, crowds.astype(int).tolist())
    same = (classes[:, None] == true_classes) * overlap
    match = _greedy(same[:, ~crowds])
    in_crowd = (same[:, crowds] >= IOU).any(axis=1)
    match[(match == NOTHING) & in_crowd] = IGNORED
    scores = np.array([result["score"] for result in results])
    truth = Detections(_corners(true_boxes[~crowds]), true_classes[~crowds])
    return JudgedImage(record, truth, Detections(_corners(boxes), classes, scores), match, overlap[:, ~crowds])


def _box_of(annotation: Mapping[str, object]) -> tuple[list[float], int, int]:
    """x, y, width and height, the class, and whether it is a crowd."""
    box = BoxMode.convert(list(annotation["bbox"]), annotation["bbox_mode"], BoxMode.XYWH_ABS)
    return box, annotation["category_id"], annotation.get("iscrowd", 0)


def _arrays(objects: Sequence[tuple]) -> tuple[np.ndarray, np.ndarray]:
    boxes = np.array([box for box, *_ in objects], float).reshape(-1, 4)
    return boxes, np.array([number for _, number, _ in objects], int)


def _corners(boxes: np.ndarray) -> np.ndarray:
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)


def _greedy(overlap: np.ndarray) -> np.ndarray:
    """The column that each row in turn takes: of those that are free the largest, of at least IOU; else NOTHING."""
    taken = np.full(len(overlap), NOTHING)
    free = overlap.copy()
    for row in range(len(free) if free.size else 0):
        column = int(free[row].argmax())
        if free[row, column] >= IOU:
            taken[row] = column
            free[:, column] = 0
    return taken


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
    scores = np.concatenate([image.predicted.scores[of] for image, (_, of) in zip(images, of_class, strict=True)])
    match = np.concatenate([image.match[of] for image, (_, of) in zip(images, of_class, strict=True)])
    order = np.argsort(-scores, kind="stable")
    order = order[match[order] != IGNORED]
    found = np.cumsum(match[order] >= 0)
    return Curve(found / total, found / np.arange(1, len(order) + 1), scores[order])


def _is_of(objects: Detections, number: int | None) -> np.ndarray:
    return np.ones(len(objects.classes), bool) if number is None else objects.classes == number


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
        taken = _greedy(image.overlap[np.ix_(wrong, missed)])
        lies = taken >= 0
        true = image.truth.classes[missed]
        rows = np.where(lies, np.append(true, count)[taken], count)
        np.add.at(table, (rows, image.predicted.classes[wrong]), 1)
        alone = np.delete(true, taken[lies])
        np.add.at(table, (alone, np.full(len(alone), count)), 1)
    return table
