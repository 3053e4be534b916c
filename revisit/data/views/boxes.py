"""Boxes in an image: random resized crops, and how much of them lies in one another.

Boxes are ``x0, y0, x1, y1`` in whole pixels, upper bounds exclusive.
"""

import math

import numpy as np

RATIO = (3 / 4, 4 / 3)  # width / height, as torchvision's RandomResizedCrop
LOG_RATIO = (math.log(RATIO[0]), math.log(RATIO[1]))
MAX_DRAWS = 10


def random_resized_crop(height: int, width: int, scale: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
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
            return np.array([x0, y0, x0 + w, y0 + h])
    ratio = min(max(width / height, RATIO[0]), RATIO[1])
    w = min(width, round(height * ratio))
    h = min(height, round(width / ratio))
    x0 = (width - w) // 2
    y0 = (height - h) // 2
    return np.array([x0, y0, x0 + w, y0 + h])


def overlap_share(box: np.ndarray, reference: np.ndarray) -> float:
    """Area of ``box`` inside ``reference``, as a share of the area of ``box`` itself, in [0, 1]."""
    w = min(box[2], reference[2]) - max(box[0], reference[0])
    h = min(box[3], reference[3]) - max(box[1], reference[1])
    if w <= 0 or h <= 0:
        return 0.0
    return float(w * h) / float((box[2] - box[0]) * (box[3] - box[1]))


def intersection_over_union(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """IoU of (..., 4) boxes with the others in the same places, (...) float64 in [0, 1]."""
    sides = np.minimum(boxes[..., 2:], others[..., 2:]) - np.maximum(boxes[..., :2], others[..., :2])
    shared = np.prod(np.maximum(sides, 0), axis=-1)
    areas = area(boxes) + area(others)
    return shared / (areas - shared)


def area(boxes: np.ndarray) -> np.ndarray:
    """Of (..., 4) boxes, (...)."""
    return np.prod(boxes[..., 2:] - boxes[..., :2], axis=-1)
