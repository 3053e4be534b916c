"""Where the views of an image lie: random resized crops and the constrained multi-crop. No pixels here.

Boxes are ``x0, y0, x1, y1`` in whole pixels, upper bounds exclusive.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

RATIO = (3 / 4, 4 / 3)  # width / height, as torchvision's RandomResizedCrop
MAX_DRAWS = 10


class CropBoxes(NamedTuple):
    """Boxes of one image's views."""

    anchor: np.ndarray  # (4,) int64
    positive: np.ndarray  # (4,) int64, the large positive
    small: np.ndarray  # (N, 4) int64, the small positives
    num_fallbacks: int  # small crops that never reached the demanded overlap


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


class ConstrainedMultiCrop:
    """Anchor, large positive and N small positives, the small ones tied to the anchor (paper, Section 4).

    A small crop is drawn again while less than ``min_overlap`` of *its own* area lies inside the anchor;
    after MAX_DRAWS draws the last one stands and is counted. ``min_overlap=0`` is plain multi-crop,
    ``num_small=0`` the two crops of MoCo.
    """

    def __init__(
        self,
        *,
        large_scale: tuple[float, float] = (0.2, 1.0),
        small_scale: tuple[float, float] = (0.05, 0.14),
        num_small: int = 4,
        min_overlap: float = 0.2,
    ):
        self.large_scale = large_scale
        self.small_scale = small_scale
        self.num_small = num_small
        self.min_overlap = min_overlap

    def __call__(self, height: int, width: int, rng: np.random.Generator) -> CropBoxes:
        """Draw the boxes of one image of ``height`` x ``width`` px."""
        anchor = random_resized_crop(height, width, self.large_scale, rng)
        positive = random_resized_crop(height, width, self.large_scale, rng)
        small = np.empty((self.num_small, 4), dtype=np.int64)
        num_fallbacks = 0
        for n in range(self.num_small):
            small[n], satisfied = self._draw_small(height, width, anchor, rng)
            num_fallbacks += not satisfied
        return CropBoxes(anchor, positive, small, num_fallbacks)

    def _draw_small(
        self, height: int, width: int, anchor: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, bool]:
        for _ in range(MAX_DRAWS):
            box = random_resized_crop(height, width, self.small_scale, rng)
            if overlap_share(box, anchor) >= self.min_overlap:
                return box, True
        return box, False
