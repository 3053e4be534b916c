"""Which of many overlapping parts are objects: they differ from what is around them, and several clusterings agree."""

import numpy as np
import torch
from torchvision.ops import nms

from projects.Discover.cell_sums import CellSums
from projects.Discover.parts import FINER, Part
from revisit.boxes.boxes import iou, sides_of

OVERLAP = 0.5  # IoU above which the worse of two boxes goes
ALIKE = 0.5  # IoU above which one box speaks for another
TINY = 1e-12  # a length or a deviation that is none


def scores_of(sums: CellSums, parts: list[Part]) -> np.ndarray:
    """(n,) float64, the higher the more like an object, in this image.

    score = (1 - cos(mean inside, mean of a ring around)) x filled share of the box x shorter side / longer side
            x root of the area x agreement,

    where the means are of the cells of the box and of a ring of a quarter of its sides, and the agreement is the sum of
    (IoU - 0.5) / 0.5 over all boxes of IoU above 0.5, its own among them.
    """
    boxes = boxes_of(parts)
    sides = sides_of(boxes)
    areas = np.array([part.area for part in parts], np.float64)
    filled = areas / sides.prod(axis=1)
    roundness = sides.min(axis=1) / sides.max(axis=1)
    scores = contrast(sums, boxes / FINER)
    scores *= filled
    scores *= roundness
    scores *= np.sqrt(areas)
    return scores * _agreement(boxes)


def _agreement(boxes: np.ndarray) -> np.ndarray:
    above = np.maximum(iou(boxes, boxes) - ALIKE, 0)
    return above.sum(axis=1) / (1 - ALIKE)


def best(boxes: np.ndarray, scores: np.ndarray, count: int, overlap: float = OVERLAP) -> list[int]:
    """Indices of at most ``count`` of the (n, 4) boxes, best first, of which no two have an IoU above ``overlap``."""
    kept = nms(torch.from_numpy(boxes), torch.from_numpy(scores), overlap)
    return kept[:count].tolist()


def contrast(sums: CellSums, boxes: np.ndarray) -> np.ndarray:
    """(n,) float64 from 0 to 2: 1 - cosine of the mean feature in each box and in the ring around it.

    Args:
        sums: of the (h, w, C) features of an image.
        boxes: (n, 4), in cells; a box covers at least one cell, and the ring one on each side that the image has.
    """
    cells = sums.whole(boxes)
    inside = sums(cells)
    around = sums(sums.with_rings(cells)) - inside
    product = (inside * around).sum(axis=1)
    lengths = np.linalg.norm(inside, axis=1)
    lengths *= np.linalg.norm(around, axis=1)
    return 1 - product / np.maximum(lengths, TINY)


def boxes_of(parts: list[Part]) -> np.ndarray:
    """(n, 4) float64, in pixels of a mask."""
    boxes = [part.box for part in parts]
    return np.array(boxes, np.float64).reshape(-1, 4)
