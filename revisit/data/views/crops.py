"""Where the views of an image lie: the constrained multi-crop, in boxes (boxes.py), without pixels."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import numpy as np

from revisit.data.views.boxes import MAX_DRAWS, Scale, overlap_share, random_resized_crop
from revisit.data.views.distant_pairs import draw_distant_pair
from revisit.keys import PIXELS, SHARE, declare, integer, list_of, number

from detectron2.config import CfgNode

_SCALE = list_of(number(0, 1, "of the image", open_low=True), 2, rising=True)
view = partial(declare, read_by="Pretraining")
view("VIEWS.LARGE_SIZE", 160, "Size of anchor and large positive, px; 224 in two-crop runs.", PIXELS, paper=160)
view("VIEWS.LARGE_SCALE", (0.2, 1.0), "Their share of the image's area.", _SCALE, paper=(0.2, 1.0))
view("VIEWS.NUM_SMALL", 4, "N, small positives of an image; 0 is two-crop.", integer(0, 64), paper=4)
view("VIEWS.SMALL_SIZE", 96, "Size of a small positive, px.", PIXELS, paper=96)
view("VIEWS.SMALL_SCALE", (0.05, 0.14), "Its share of the image's area.", _SCALE, paper=(0.05, 0.14))
view(
    "VIEWS.MIN_OVERLAP",
    0.2,
    "Constrained multi-crop: the least share of a small crop's own area that lies inside the anchor; 0 switches the "
    "constraint off. The authors' code has 0.1.",
    SHARE,
    paper=0.2,
)
view(
    "VIEWS.MAX_IOU",
    1.0,
    "The largest IoU of anchor and large positive, of the study of crops; 1 sets no limit, 0 keeps them disjoint.",
    SHARE,
)


class CropBoxes(NamedTuple):
    """Boxes of one image's views."""

    anchor: np.ndarray  # (4,) int64
    positive: np.ndarray  # (4,) int64, the large positive
    small: np.ndarray  # (N, 4) int64, the small positives
    num_fallbacks: int  # crops that never met their constraint

    def stacked(self) -> np.ndarray:
        """(2 + N, 4) int64: the anchor, the large positive and the small positives."""
        return np.vstack([self.anchor, self.positive, self.small])


@dataclass(frozen=True)
class ConstrainedMultiCrop:
    """Anchor, large positive and N small positives, the small ones tied to the anchor (paper, Section 4).

    A small crop is drawn again while less than ``min_overlap`` of *its own* area lies inside the anchor;
    after MAX_DRAWS draws the last one stands and is counted. ``min_overlap=0`` is plain multi-crop,
    ``num_small=0`` two crops.

    ``max_iou`` < 1 forces anchor and large positive apart (``draw_distant_pair``); a pair that stays above it
    counts as a fallback.
    """

    large_scale: Scale = (0.2, 1.0)
    small_scale: Scale = (0.05, 0.14)
    num_small: int = 4
    min_overlap: float = 0.2
    max_iou: float = 1.0

    @classmethod
    def from_config(cls, cfg: CfgNode) -> Self:
        """The crops that cfg.VIEWS describes."""
        keys = ("LARGE_SCALE", "SMALL_SCALE", "NUM_SMALL", "MIN_OVERLAP", "MAX_IOU")
        return cls(**{key.lower(): cfg.VIEWS[key] for key in keys})

    def __call__(self, height: int, width: int, rng: np.random.Generator) -> CropBoxes:
        """Draw the boxes of one image of ``height`` x ``width`` px."""
        anchor, positive, is_apart = self._draw_large(height, width, rng)
        small = np.empty((self.num_small, 4), dtype=np.int64)
        num_fallbacks = int(not is_apart)
        for n in range(self.num_small):
            small[n], is_inside = self._draw_small(height, width, anchor, rng)
            num_fallbacks += not is_inside
        return CropBoxes(anchor, positive, small, num_fallbacks)

    def _draw_large(self, height: int, width: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, bool]:
        """The anchor, the large positive, and whether they meet ``max_iou``."""
        if self.max_iou < 1:
            return draw_distant_pair(height, width, self.large_scale, self.max_iou, rng)
        anchor = random_resized_crop(height, width, self.large_scale, rng)
        positive = random_resized_crop(height, width, self.large_scale, rng)
        return anchor, positive, True

    def _draw_small(
        self, height: int, width: int, anchor: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, bool]:
        """A small positive, and whether it meets ``min_overlap``."""
        for _ in range(MAX_DRAWS):
            small = random_resized_crop(height, width, self.small_scale, rng)
            if overlap_share(small, anchor) >= self.min_overlap:
                return small, True
        return small, False
