"""What a teacher finds, counted: from it the numbers that show one going bad."""

from collections.abc import Sequence

import torch
from torch import Tensor

from revisit.boxes.boxes import NOTHING, Boxes, iou, matched

from detectron2.structures import Instances

# Rows of a tally, by class: of photographs without labels the boxes and the sum of their scores; of labelled images all
# labels, and every few iterations labels, confident boxes and those of them that are right.
PSEUDO, SCORES, LABELS, COMPARED, CONFIDENT, RIGHT = range(6)


class Tally:
    """Counts since the last ``take``: (6, C) float64 by row and class, and how many photographs they are of."""

    def __init__(self, num_classes: int):
        self._table = torch.zeros(6, num_classes, dtype=torch.float64)
        self._photographs = 0

    def take(self) -> tuple[Tensor, int]:
        """The counts, which begin at 0 again."""
        taken = self._table, self._photographs
        self._table, self._photographs = torch.zeros_like(self._table), 0
        return taken

    def add_pseudo_boxes(self, of_photographs: Sequence[Instances]) -> None:
        """Count the teacher's boxes in photographs without labels."""
        self._photographs += len(of_photographs)
        for objects in of_photographs:
            self._add(PSEUDO, objects.pred_classes)
            self._add(SCORES, objects.pred_classes, objects.scores)

    def add_labels(self, batch: Sequence[dict]) -> None:
        """Count the labels of a batch."""
        for sample in batch:
            self._add(LABELS, sample["instances"].gt_classes)

    def add_agreement(self, of_images: Sequence[Instances], batch: Sequence[dict]) -> None:
        """Compare the teacher's boxes in labelled images with their labels."""
        for objects, sample in zip(of_images, batch, strict=True):
            labels = sample["instances"].to("cpu")
            objects = objects.to("cpu")
            self._add(COMPARED, labels.gt_classes)
            self._add(CONFIDENT, objects.pred_classes)
            self._add(RIGHT, objects.pred_classes[right_ones(objects, labels)])

    def _add(self, row: int, classes: Tensor, values: Tensor | None = None) -> None:
        classes = classes.cpu()
        amounts = torch.ones(len(classes)) if values is None else values.cpu()
        self._table[row].index_add_(0, classes, amounts.double())


def right_ones(objects: Instances, labels: Instances) -> Tensor:
    """(N,) bool: whose best label of its class, among those that no box of a higher score has, overlaps by IOU."""
    found, truth = Boxes.of_instances(objects), Boxes.of_instances(labels)
    of_class = (found.classes[:, None] == truth.classes) * iou(found.xyxy, truth.xyxy)
    order = found.best_first()
    right = torch.zeros(len(found), dtype=torch.bool)
    right[order] = torch.from_numpy(matched(of_class[order]) != NOTHING)
    return right


def scores_of(table: Tensor, photographs: int, names: Sequence[str]) -> dict[str, float]:
    """By name, as metrics.json has them, what a table says; without what nothing was counted for."""
    pseudo, scores, _, compared, confident, right = table.sum(dim=1).tolist()
    of_classes = zip(names, table[PSEUDO].tolist(), strict=True)
    fractions = {
        "teacher/boxes": (pseudo, photographs),
        "teacher/score": (scores, pseudo),
        "teacher/precision": (right, confident),
        "teacher/recall": (right, compared),
    }
    fractions |= {f"teacher/share-{name}": (count, pseudo) for name, count in of_classes}
    return {name: part / whole for name, (part, whole) in fractions.items() if whole}
