"""Boxes in an image: random resized crops, and how much of them lies in one another.

Boxes are ``x0, y0, x1, y1`` in whole pixels, upper bounds exclusive.
"""

import math

import numpy as np

RATIO = (3 / 4, 4 / 3)  # width / height, as torchvision's RandomResizedCrop
LOG_RATIO = tuple(map(math.log, RATIO))
MAX_DRAWS = 10
Scale = tuple[float, float]  # lowest and highest share of the image's area


def random_resized_crop(height: int, width: int, scale: Scale, rng: np.random.Generator) -> np.ndarray:
    """One (4,) int64 box of random area, a share of the image's in ``scale``, and ratio, as torchvision's.

    RandomResizedCrop is its distribution. When ten draws do not fit, it is the largest centred box of a valid ratio.
    """
    for _ in range(MAX_DRAWS):
        area = height * width * rng.uniform(*scale)
        ratio = math.exp(rng.uniform(*LOG_RATIO))
        w = round(math.sqrt(area * ratio))
        h = round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            y0 = rng.integers(0, height - h + 1)
            x0 = rng.integers(0, width - w + 1)
            return _box(x0, y0, w, h)
    return _largest_centred_box(height, width)


def _largest_centred_box(height: int, width: int) -> np.ndarray:
    """Of a ratio within RATIO."""
    narrowest, widest = RATIO
    ratio = max(width / height, narrowest)
    ratio = min(ratio, widest)
    w = min(width, round(height * ratio))
    h = min(height, round(width / ratio))
    x0 = (width - w) // 2
    y0 = (height - h) // 2
    return _box(x0, y0, w, h)


def _box(x0: int, y0: int, w: int, h: int) -> np.ndarray:
    """(4,) int64, of a corner and two sides."""
    x1 = x0 + w
    y1 = y0 + h
    return np.array([x0, y0, x1, y1])


def overlap_share(box: np.ndarray, reference: np.ndarray) -> float:
    """Area of ``box`` inside ``reference``, as a share of the area of ``box`` itself, in [0, 1]."""
    x0, y0, x1, y1 = box
    left, top, right, bottom = reference
    w = min(x1, right) - max(x0, left)
    h = min(y1, bottom) - max(y0, top)
    if w <= 0 or h <= 0:
        return 0.0
    inside = w * h
    whole = (x1 - x0) * (y1 - y0)
    return float(inside) / float(whole)


def intersection_over_union(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """IoU of (..., 4) boxes with the others in the same places, (...) float64 in [0, 1]."""
    low, high = corners(boxes)
    other_low, other_high = corners(others)
    sides = np.minimum(high, other_high) - np.maximum(low, other_low)
    shared = np.prod(np.maximum(sides, 0), axis=-1)
    areas = area(boxes) + area(others)
    return shared / (areas - shared)


def area(boxes: np.ndarray) -> np.ndarray:
    """Of (..., 4) boxes, (...)."""
    low, high = corners(boxes)
    return np.prod(high - low, axis=-1)


def corners(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The upper left corners of (..., 4) boxes and the lower right ones, each (..., 2)."""
    return boxes[..., :2], boxes[..., 2:]
