"""Where the views of an image lie: random resized crops and the constrained multi-crop. No pixels here.

Boxes are ``x0, y0, x1, y1`` in whole pixels, upper bounds exclusive.
"""

import math
from typing import NamedTuple

import numpy as np

RATIO = (3 / 4, 4 / 3)  # width / height, as torchvision's RandomResizedCrop
MAX_DRAWS = 10
PAIR_BLOCK = 512
MAX_PAIR_BLOCKS = 16


class CropBoxes(NamedTuple):
    """Boxes of one image's views."""

    anchor: np.ndarray  # (4,) int64
    positive: np.ndarray  # (4,) int64, the large positive
    small: np.ndarray  # (N, 4) int64, the small positives
    num_fallbacks: int  # crops that never met their constraint


def random_resized_crop(height: int, width: int, scale: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """One box of random area and aspect ratio, distributed as torchvision's RandomResizedCrop.

    Args:
        height, width: of the image, px.
        scale: bounds of the box's share of the image area, 0 < low <= high <= 1.

    Returns:
        (4,) int64 box. When ten draws do not fit the image, the largest centred box of a valid ratio.
    """
    log_ratio = (math.log(RATIO[0]), math.log(RATIO[1]))
    for _ in range(MAX_DRAWS):
        area = height * width * rng.uniform(*scale)
        ratio = math.exp(rng.uniform(*log_ratio))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            y0, x0 = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
            return np.array([x0, y0, x0 + w, y0 + h])
    ratio = min(max(width / height, RATIO[0]), RATIO[1])
    w, h = min(width, round(height * ratio)), min(height, round(width / ratio))
    x0, y0 = (width - w) // 2, (height - h) // 2
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
    areas = sum(np.prod(b[..., 2:] - b[..., :2], axis=-1) for b in (boxes, others))
    return shared / (areas - shared)


def draw_distant_pair(
    height: int, width: int, scale: tuple[float, float], max_iou: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Two random resized crops, drawn again together while their IoU is above ``max_iou`` (paper, Section 3.1).

    Of the pairs of scale (0.2, 1) in a 640 x 480 image 7 % have an IoU of at most 0.2 and 0.4 % none at all,
    so they are drawn PAIR_BLOCK at a time, up to MAX_PAIR_BLOCKS times.

    Returns:
        The two (4,) int64 boxes, and whether they meet the limit: otherwise the closest to it that were drawn.
    """
    best, least = None, math.inf
    for _ in range(MAX_PAIR_BLOCKS):
        pairs = _fitting_crops(height, width, scale, 2 * PAIR_BLOCK, rng)
        pairs = pairs[: len(pairs) // 2 * 2].reshape(-1, 2, 4)
        if not len(pairs):
            continue
        iou = intersection_over_union(pairs[:, 0], pairs[:, 1])
        first = int(np.argmax(iou <= max_iou)) if (iou <= max_iou).any() else int(np.argmin(iou))
        if iou[first] < least:
            best, least = pairs[first], iou[first]
        if least <= max_iou:
            return best[0], best[1], True
    if best is None:  # an image too elongated for any crop of this ratio
        best = [random_resized_crop(height, width, scale, rng) for _ in range(2)]
    return best[0], best[1], False


def _fitting_crops(
    height: int, width: int, scale: tuple[float, float], count: int, rng: np.random.Generator
) -> np.ndarray:
    """Those of ``count`` draws of random_resized_crop that fit the image, (n, 4) int64."""
    area = height * width * rng.uniform(*scale, size=count)
    ratio = np.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1]), size=count))
    size = np.rint(np.sqrt(np.stack([area * ratio, area / ratio], axis=1))).astype(np.int64)  # w, h
    size = size[((size > 0) & (size <= (width, height))).all(axis=1)]
    corner = rng.integers(0, np.array([width, height]) - size + 1)
    return np.concatenate([corner, corner + size], axis=1)


class ConstrainedMultiCrop:
    """Anchor, large positive and N small positives, the small ones tied to the anchor (paper, Section 4).

    A small crop is drawn again while less than ``min_overlap`` of *its own* area lies inside the anchor;
    after MAX_DRAWS draws the last one stands and is counted. ``min_overlap=0`` is plain multi-crop,
    ``num_small=0`` two crops.

    ``max_iou`` < 1 forces anchor and large positive apart (``draw_distant_pair``); a pair that stays above it
    counts as a fallback.
    """

    def __init__(
        self,
        *,
        large_scale: tuple[float, float] = (0.2, 1.0),
        small_scale: tuple[float, float] = (0.05, 0.14),
        num_small: int = 4,
        min_overlap: float = 0.2,
        max_iou: float = 1.0,
    ):
        self.large_scale = large_scale
        self.small_scale = small_scale
        self.num_small = num_small
        self.min_overlap = min_overlap
        self.max_iou = max_iou

    def __call__(self, height: int, width: int, rng: np.random.Generator) -> CropBoxes:
        """Draw the boxes of one image of ``height`` x ``width`` px."""
        anchor, positive, satisfied = self._draw_pair(height, width, rng)
        small = np.empty((self.num_small, 4), dtype=np.int64)
        num_fallbacks = int(not satisfied)
        for n in range(self.num_small):
            small[n], satisfied = self._draw_small(height, width, anchor, rng)
            num_fallbacks += not satisfied
        return CropBoxes(anchor, positive, small, num_fallbacks)

    def _draw_pair(self, height: int, width: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, bool]:
        if self.max_iou < 1:
            return draw_distant_pair(height, width, self.large_scale, self.max_iou, rng)
        anchor = random_resized_crop(height, width, self.large_scale, rng)
        return anchor, random_resized_crop(height, width, self.large_scale, rng), True

    def _draw_small(
        self, height: int, width: int, anchor: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, bool]:
        for _ in range(MAX_DRAWS):
            box = random_resized_crop(height, width, self.small_scale, rng)
            if overlap_share(box, anchor) >= self.min_overlap:
                return box, True
        return box, False
