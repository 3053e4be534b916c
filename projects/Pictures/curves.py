"""Plots, and the curves of a pretraining run from its metrics.json."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from revisit.checkpoint.metrics_file import read_metrics
from revisit.files import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = {
    "losses": ("loss_inst", "loss_nn_raw", "total_loss"),
    "contrast accuracy (%)": ("contrast_top1", "contrast_top5"),
    "held-out accuracy (%)": ("knn_top1", "linear_top1"),
    "neighbour purity (%)": ("neighbor_purity",),
    "spread (1: even, 0: collapsed)": ("feature_std", "embedding_std"),
    "learning rate": ("lr",),
}


@contextmanager
def saved_plot(
    path: Path, columns: int = 1, rows: int = 1, *, size: tuple[float, float] = (5, 3.6), title: str = ""
) -> Iterator[list[Axes]]:
    """Axes of ``size`` inches to draw on, row by row; then the PNG is written, with a grid and with legends where lines
    have names. Titles and names are text, where matplotlib takes a pair of dollar signs for a formula."""
    from matplotlib.figure import Figure  # not at start-up; without pyplot, which would open windows

    figure = Figure((columns * size[0], rows * size[1]), layout="constrained")
    texts = [figure.suptitle(title, fontsize=10)]
    axes = figure.subplots(rows, columns, squeeze=False)
    yield list(axes.flat)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
        texts += [axis.title, axis.xaxis.label, axis.yaxis.label]
        if axis.get_legend_handles_labels()[0]:
            texts += axis.legend(fontsize=8, frameon=False).get_texts()
    for text in texts:
        text.set_parse_math(False)
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")


def plot_curves(metrics: Path, output: Path) -> None:
    """Draw every panel of what the run has recorded, by iteration, into a PNG."""
    series = read_metrics(metrics)
    panels = {title: [name for name in names if name in series] for title, names in PANELS.items()}
    panels = {title: names for title, names in panels.items() if names}
    columns = 3 if len(panels) > 4 else 2
    with saved_plot(output, columns, max(1, -(-len(panels) // columns)), size=(14 / 3, 3)) as axes:
        for axis, (title, names) in zip(axes, panels.items(), strict=False):
            for name in names:
                marker = "o" if name in PANELS["held-out accuracy (%)"] else None
                axis.plot(*zip(*series[name], strict=True), label=name, marker=marker, markersize=3)
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("iteration")
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
