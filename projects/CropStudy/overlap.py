"""The IoU of pairs of random resized crops, with and without a limit on it (paper, Section 3.1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from revisit.data.crops import ConstrainedMultiCrop, intersection_over_union
from revisit.randomness import Stream, counter_rng


class Overlaps(NamedTuple):
    """Pairs of crops that were drawn under one limit."""

    max_iou: float
    iou: np.ndarray  # (N,) float64 in [0, 1]
    num_fallbacks: int  # pairs that never met the limit, and may be above it


def draw_overlaps(
    image_size: tuple[int, int], scale: tuple[float, float], max_iou: float, num_pairs: int, seed: int
) -> Overlaps:
    """The IoU of anchor and large positive, as pretraining draws them.

    Args:
        image_size: (height, width), px.
        scale: bounds of a crop's share of the image area.
        max_iou: VIEWS.MAX_IOU; 1 leaves the crops alone.
    """
    crops = ConstrainedMultiCrop(large_scale=scale, num_small=0, max_iou=max_iou)
    drawn = [
        crops(*image_size, counter_rng(seed, Stream.VIEWS, 0, index))
        for index in tqdm(range(num_pairs), unit="pair", desc=f"IoU at most {max_iou:g}")
    ]
    anchors, positives = (np.stack([getattr(boxes, name) for boxes in drawn]) for name in ("anchor", "positive"))
    fallbacks = sum(boxes.num_fallbacks for boxes in drawn)
    return Overlaps(max_iou, intersection_over_union(anchors, positives), fallbacks)
