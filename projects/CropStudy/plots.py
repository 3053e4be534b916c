"""Pictures of the study."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from revisit.viz.curves import headless_pyplot

from .overlap import Overlaps
from .runs import Run

BINS = np.linspace(0, 1, 51)


def limit_name(max_iou: float) -> str:
    return "no limit" if max_iou >= 1 else f"IoU at most {max_iou:g}"


def plot_overlaps(overlaps: list[Overlaps], title: str, path: Path) -> None:
    """Histograms of the IoU, one panel for each limit, with its mean; pairs above the limit in red."""
    plt = headless_pyplot()
    figure, axes = plt.subplots(1, len(overlaps), figsize=(3.2 * len(overlaps), 3), layout="constrained", squeeze=False)
    for axis, drawn in zip(axes[0], overlaps, strict=True):
        share = np.full(len(drawn.iou), 100 / len(drawn.iou))
        above = drawn.iou > drawn.max_iou
        axis.hist(drawn.iou[~above], BINS, weights=share[~above], color="C0")
        axis.hist(drawn.iou[above], BINS, weights=share[above], color="C3")
        axis.axvline(drawn.iou.mean(), color="black", linewidth=1)
        fallbacks = f", {drawn.num_fallbacks} fallbacks" if drawn.max_iou < 1 else ""
        axis.set_title(f"{limit_name(drawn.max_iou)}\nmean {drawn.iou.mean():.3f}{fallbacks}", fontsize=9)
        axis.set_xlabel("IoU of anchor and positive")
    axes[0][0].set_ylabel("pairs (%)")
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_runs(runs: list[Run], score: str, path: Path) -> None:
    """Loss by iteration for each limit, and the score against the limit."""
    plt = headless_pyplot()
    figure, (losses, scores) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for run in runs:
        losses.plot(*zip(*run.loss, strict=True), label=limit_name(run.max_iou))
    losses.set_xlabel("iteration")
    losses.set_ylabel("loss_inst")
    losses.legend(fontsize=8, frameon=False)
    scores.plot([run.max_iou for run in runs], [run.score for run in runs], marker="o")
    scores.set_xlabel("limit on the IoU (1: none)")
    scores.set_ylabel(score)
    for axis in (losses, scores):
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)
