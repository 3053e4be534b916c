"""The IoU of pairs of random resized crops, with and without a limit on it (paper, Section 3.1)."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from revisit.data.crops import ConstrainedMultiCrop, intersection_over_union
from revisit.randomness import Stream, counter_rng
from revisit.viz.curves import saved_plot

BINS = np.linspace(0, 1, 51)


class Overlaps(NamedTuple):
    """Pairs of crops drawn under one limit."""

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


def limit_name(max_iou: float) -> str:
    return "no limit" if max_iou >= 1 else f"IoU at most {max_iou:g}"


def plot_overlaps(overlaps: list[Overlaps], title: str, path: Path) -> None:
    """Histograms of the IoU, one for each limit, with its mean; pairs above the limit in red."""
    with saved_plot(path, len(overlaps), size=(3.2, 3), title=title) as axes:
        for axis, (max_iou, iou, num_fallbacks) in zip(axes, overlaps, strict=True):
            above = iou > max_iou
            for pairs, color in ((iou[~above], "C0"), (iou[above], "C3")):
                axis.hist(pairs, BINS, weights=np.full(len(pairs), 100 / len(iou)), color=color)
            axis.axvline(iou.mean(), color="black", linewidth=1)
            fallbacks = f", {num_fallbacks} fallbacks" if max_iou < 1 else ""
            axis.set_title(f"{limit_name(max_iou)}\nmean {iou.mean():.3f}{fallbacks}", fontsize=9)
            axis.set_xlabel("IoU of anchor and positive")
        axes[0].set_ylabel("pairs (%)")
