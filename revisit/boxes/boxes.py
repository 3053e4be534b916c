"""The boxes of an image, wherever they come from, how much they overlap, and which of them find which.

Two forms, converted here alone: ``xyxy`` is x0, y0, x1, y1, and ``xywh`` x, y, width, height, as COCO's files have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools import mask as run_lengths

from revisit.data.sources.records import NOT_SCORED

from detectron2.structures import BoxMode, Instances

IOU = 0.5  # from which on a box is found
Objects = Sequence[Mapping[str, Any]]  # annotations of a record, or COCO's
NOTHING = -1  # instead of the number of a box: there is none


@dataclass(frozen=True)
class Boxes:
    """N objects in an image; true ones have no scores."""

    xyxy: np.ndarray  # (N, 4) float px
    classes: np.ndarray  # (N,) int
    scores: Any = None  # (N,) float array, 0..1
    masks: Any = None  # (N, H, W) bool array

    def __len__(self) -> int:
        return len(self.xyxy)

    def __getitem__(self, chosen: np.ndarray | slice) -> Boxes:
        """Some of them, in the order of indices, or by a mask."""
        arrays = (self.xyxy, self.classes, self.scores, self.masks)
        return Boxes(*(None if values is None else values[chosen] for values in arrays))

    @classmethod
    def of_annotations(cls, annotations: Objects, dtype: type = np.float64) -> Boxes:
        """Of a record, crowds too, in any of Detectron2's modes, without masks. Corners are summed in ``dtype``."""
        modes = np.fromiter((each["bbox_mode"] for each in annotations), int, len(annotations))
        xyxy = np.zeros((len(annotations), 4), dtype)
        for mode in np.unique(modes):
            of_mode = np.flatnonzero(modes == mode)
            boxes = np.array([annotations[n]["bbox"] for n in of_mode], dtype)
            xyxy[of_mode] = BoxMode.convert(boxes, BoxMode(mode), BoxMode.XYXY_ABS)
        return cls(xyxy, np.array([each["category_id"] for each in annotations], int))

    @classmethod
    def of_results(cls, results: Objects) -> Boxes:
        """COCO's results, ``bbox`` xywh, ``score`` and ``category_id``, without masks."""
        classes = np.array([each["category_id"] for each in results], int)
        return cls(corners_of(results), classes, np.array([each["score"] for each in results], float))

    @classmethod
    def of_instances(cls, objects: Instances) -> Boxes:
        """What a detector has predicted, or the labels of an image that a mapper has read."""
        fields = objects.to("cpu").get_fields()
        values = {name.removeprefix("pred_").removeprefix("gt_"): value for name, value in fields.items()}
        masks, scores = values.get("masks"), values.get("scores")
        return cls(
            values["boxes"].tensor.numpy(),
            values["classes"].numpy(),
            None if scores is None else scores.numpy(),
            None if masks is None else getattr(masks, "tensor", masks).numpy(),
        )

    @classmethod
    def joined(cls, parts: Sequence[Boxes]) -> Boxes:
        """What several detectors have found in an image, without masks."""
        arrays = zip(*((part.xyxy, part.classes, part.scores) for part in parts), strict=True)
        return cls(*map(np.concatenate, arrays))

    def best_first(self) -> np.ndarray:
        """(N,) indices by falling scores; of true ones as they are."""
        return np.arange(len(self)) if self.scores is None else np.argsort(-self.scores, kind="stable")


def corners_of(objects: Objects) -> np.ndarray:
    """(N, 4) float64 xyxy of objects in COCO's format. Raises ValueError for a ``bbox`` that is not four numbers."""
    xywh = np.array([each["bbox"] for each in objects], float).reshape(len(objects), 4)
    return np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1)


def with_sides(xyxy: np.ndarray) -> np.ndarray:
    """(..., 4) xyxy -> xywh."""
    return np.concatenate([xyxy[..., :2], sides_of(xyxy)], axis=-1)


def sides_of(xyxy: np.ndarray) -> np.ndarray:
    """(..., 2) widths and heights of (..., 4) xyxy."""
    return xyxy[..., 2:] - xyxy[..., :2]


def in_coco(annotation: Mapping[str, Any]) -> dict[str, Any]:
    """A record's annotation, in any of Detectron2's modes, as COCO's files have it: ``bbox`` xywh, ``iscrowd``, its
    class counted from 1, and its mask where it has one. One that is NOT_SCORED is ``iscrowd`` with this mark, so that
    others score it as we do, and ``coco:`` reads it as it was."""
    xywh = BoxMode.convert(list(annotation["bbox"]), annotation["bbox_mode"], BoxMode.XYWH_ABS)
    is_crowd, number = annotation.get("iscrowd", 0), annotation["category_id"] + 1
    mark = {"iscrowd": 1, NOT_SCORED: True} if annotation.get(NOT_SCORED) and not is_crowd else {}
    made = {"bbox": xywh, "iscrowd": is_crowd, "category_id": number} | mark
    mask = annotation.get("segmentation")
    if isinstance(mask, dict) and isinstance(mask["counts"], bytes):
        mask = {**mask, "counts": mask["counts"].decode()}  # run lengths, as JSON can hold them
    return made if mask is None else made | {"segmentation": mask}


def annotation_of(mask: np.ndarray) -> dict[str, Any]:
    """An object by its (H, W) mask, bool or 0 and 1, as COCO's files have it: box, run lengths, area."""
    encoded = run_lengths.encode(np.asfortranarray(mask, np.uint8))
    segmentation = {"size": encoded["size"], "counts": encoded["counts"].decode("ascii")}
    return {
        "bbox": run_lengths.toBbox(encoded).tolist(),
        "segmentation": segmentation,
        "area": int(run_lengths.area(encoded)),
    }


def iou(boxes: np.ndarray, others: np.ndarray, crowds: np.ndarray | None = None) -> np.ndarray:
    """(N, M) float64 of (N, 4) and (M, 4) xyxy; 0 without area.

    Args:
        crowds: (M,) bool, others of which the share of a box that lies in them counts, as in COCO's evaluation.
    """
    are_crowds = np.zeros(len(others), bool) if crowds is None else crowds
    xywh = [with_sides(each.astype(np.float64)) for each in (boxes, others)]
    return np.reshape(run_lengths.iou(*xywh, are_crowds.astype(int).tolist()), (len(boxes), len(others)))


def iou_of_pairs(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(...) float64 of (..., 4) xyxy each, broadcast: each box with the other in its place; 0 without area."""
    low, high = np.maximum(boxes, others), np.minimum(boxes, others)
    shared = (high[..., 2:] - low[..., :2]).clip(0).prod(axis=-1)
    union = sides_of(boxes).prod(axis=-1) + sides_of(others).prod(axis=-1) - shared
    return np.divide(shared, union, out=np.zeros(shared.shape), where=union > 0)


def matched(overlap: np.ndarray) -> np.ndarray:
    """The column that each row in turn takes: of those that are free the largest, of at least IOU; else NOTHING."""
    taken = np.full(len(overlap), NOTHING)
    free = overlap.copy()
    for row in range(len(free) if free.size else 0):
        column = int(free[row].argmax())
        if free[row, column] >= IOU:
            taken[row] = column
            free[:, column] = 0
    return taken
