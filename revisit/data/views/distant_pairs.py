"""Pairs of random resized crops that overlap little: the study of crops of the paper's Section 3.1 (VIEWS.MAX_IOU)."""

import math

import numpy as np

from revisit.data.views.boxes import LOG_RATIO, Scale, intersection_over_union, random_resized_crop

PAIR_BLOCK = 512
MAX_PAIR_BLOCKS = 16


def draw_distant_pair(
    height: int, width: int, scale: Scale, max_iou: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Two random resized crops, drawn again together while their IoU is above ``max_iou`` (paper, Section 3.1).

    Of the pairs of scale (0.2, 1) in a 640 x 480 image 7 % have an IoU of at most 0.2 and 0.4 % none at all,
    so they are drawn PAIR_BLOCK at a time, up to MAX_PAIR_BLOCKS times.

    Returns:
        The two (4,) int64 boxes, and whether they meet the limit: otherwise the closest to it that were drawn.
    """
    best = None
    least = math.inf
    for _ in range(MAX_PAIR_BLOCKS):
        pairs = _fitting_pairs(height, width, scale, rng)
        if not len(pairs):
            continue
        iou = intersection_over_union(pairs[:, 0], pairs[:, 1])
        if iou.min() <= max_iou:
            first = np.argmax(iou <= max_iou)
            return *pairs[first], True
        if iou.min() < least:
            best = pairs[iou.argmin()]
            least = iou.min()
    if best is None:  # an image too elongated for any crop of this ratio
        best = [random_resized_crop(height, width, scale, rng) for _ in range(2)]
    return *best, False


def _fitting_pairs(height: int, width: int, scale: Scale, rng: np.random.Generator) -> np.ndarray:
    """Pairs of crops of PAIR_BLOCK pairs of draws that fit the image, (n, 2, 4) int64."""
    crops = _fitting_crops(height, width, scale, 2 * PAIR_BLOCK, rng)
    whole = len(crops) // 2 * 2
    return crops[:whole].reshape(-1, 2, 4)


def _fitting_crops(height: int, width: int, scale: Scale, count: int, rng: np.random.Generator) -> np.ndarray:
    """Those of ``count`` draws of random_resized_crop that fit the image, (n, 4) int64."""
    area = height * width * rng.uniform(*scale, size=count)
    ratio = np.exp(rng.uniform(*LOG_RATIO, size=count))
    size = np.rint(np.sqrt(np.stack([area * ratio, area / ratio], axis=1))).astype(np.int64)  # w, h
    size = size[((size > 0) & (size <= (width, height))).all(axis=1)]
    corner = rng.integers(0, np.array([width, height]) - size + 1)
    return np.concatenate([corner, corner + size], axis=1)
