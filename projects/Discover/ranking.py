"""Which of many overlapping parts are objects: they differ from what is around them, and several clusterings agree."""

import numpy as np
import torch
from torchvision.ops import box_iou, nms

from projects.Discover.parts import FINER, Part

OVERLAP = 0.5  # IoU above which the worse of two boxes goes
RING = 0.25  # of a box's sides, the width of what is around it
ALIKE = 0.5  # IoU above which one box speaks for another


def scores_of(features: np.ndarray, parts: list[Part]) -> np.ndarray:
    """(n,) float64, the higher the more like an object, in this image.

    score = (1 - cos(mean inside, mean of a ring around)) x filled share of the box x shorter side / longer side
            x root of the area x agreement,

    where the means are of the cells of the box and of a ring of a quarter of its sides, and the agreement is the sum of
    (IoU - 0.5) / 0.5 over all boxes of IoU above 0.5, its own among them.
    """
    boxes = boxes_of(parts)
    areas = np.array([part.area for part in parts], np.float64)
    sides = boxes[:, 2:] - boxes[:, :2]
    filled = areas / sides.prod(axis=1)
    roundness = sides.min(axis=1) / sides.max(axis=1)
    overlap = box_iou(*[torch.from_numpy(boxes)] * 2).numpy()
    agreement = np.maximum(overlap - ALIKE, 0).sum(axis=1) / (1 - ALIKE)
    return contrast(features, boxes / FINER) * filled * roundness * np.sqrt(areas) * agreement


def best(boxes: np.ndarray, scores: np.ndarray, count: int, overlap: float = OVERLAP) -> list[int]:
    """Indices of at most ``count`` of the (n, 4) boxes, best first, of which no two have an IoU above ``overlap``."""
    kept = nms(torch.from_numpy(boxes), torch.from_numpy(scores), overlap)
    return kept[:count].tolist()


def contrast(features: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(n,) float64 from 0 to 2: 1 - cosine of the mean feature in each box and in the ring around it.

    Args:
        features: (h, w, C).
        boxes: (n, 4), in cells; a box covers at least one cell, and the ring one on each side that the image has.
    """
    sums, low, high = rounded_boxes(features, boxes)
    inside = box_sums(sums, low, high)
    around = box_sums(sums, *rounded_rings(features, low, high)) - inside
    lengths = np.linalg.norm(inside, axis=1) * np.linalg.norm(around, axis=1)
    return 1 - (inside * around).sum(axis=1) / np.maximum(lengths, 1e-12)


def rounded_boxes(features: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The integral image of (h, w, C) features, (h + 1, w + 1, C) float64, and the corners (x, y) of boxes of whole
    cells, (n, 2) int each: at least one cell, inside the image."""
    height, width, _ = features.shape
    sums = np.pad(features.astype(np.float64).cumsum(0).cumsum(1), ((1, 0), (1, 0), (0, 0)))
    end = np.array([width, height])
    low = np.clip(np.round(boxes[:, :2]).astype(int), 0, end - 1)
    high = np.clip(np.maximum(np.round(boxes[:, 2:]).astype(int), low + 1), 1, end)
    return sums, low, high


def rounded_rings(features: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Corners of boxes that are larger by RING of a side, and at least a cell, on each side that the image has."""
    end = np.array([features.shape[1], features.shape[0]])
    margin = np.maximum(np.round(RING * (high - low)).astype(int), 1)
    return np.maximum(low - margin, 0), np.minimum(high + margin, end)


def box_sums(sums: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """(n, C) sums over boxes of whole cells, by an integral image (h + 1, w + 1, C)."""
    (x0, y0), (x1, y1) = low.T, high.T
    return sums[y1, x1] - sums[y0, x1] - sums[y1, x0] + sums[y0, x0]


def boxes_of(parts: list[Part]) -> np.ndarray:
    """(n, 4) float64, in pixels of a mask."""
    return np.array([part.box for part in parts], np.float64).reshape(-1, 4)
