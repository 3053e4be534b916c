"""The curves of a pretraining run, from its metrics.json."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

PANELS = {
    "losses": ("loss_inst", "loss_nn_raw", "total_loss"),
    "contrast accuracy (%)": ("contrast_top1", "contrast_top5"),
    "held-out accuracy (%)": ("knn_top1", "linear_top1"),
    "neighbour purity (%)": ("neighbor_purity",),
    "spread (1: even, 0: collapsed)": ("feature_std", "embedding_std"),
    "learning rate": ("lr",),
}


def read_metrics(path: Path) -> dict[str, list[tuple[int, float]]]:
    """metrics.json -> (iteration, value) pairs by name, in order.

    A last line that a killed run left torn is skipped; of iterations that a resumed run made again, the last counts.
    """
    series: dict[str, dict[int, float]] = {}
    for line in path.read_text().splitlines():
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            continue
        iteration = values.pop("iteration")
        for name, value in values.items():
            series.setdefault(name, {})[iteration] = value
    return {name: sorted(values.items()) for name, values in series.items()}


def headless_pyplot() -> ModuleType:
    """matplotlib.pyplot for files alone, imported where a picture is drawn and not at start-up."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot_curves(metrics: Path, output: Path) -> None:
    """Draw every panel whose values the run has written over the iterations into a PNG."""
    plt = headless_pyplot()
    series = read_metrics(metrics)
    figure, axes = plt.subplots(2, 3, figsize=(14, 6), sharex=True, layout="constrained")
    for axis, (title, names) in zip(axes.flat, PANELS.items(), strict=True):
        for name in names:
            if name in series:
                marker = "o" if name in PANELS["held-out accuracy (%)"] else None
                axis.plot(*zip(*series[name], strict=True), label=name, marker=marker, markersize=3)
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
        if any(name in series for name in names):
            axis.legend(fontsize=8, frameon=False)
    for axis in axes[1]:
        axis.set_xlabel("iteration")
    figure.savefig(output, dpi=110)
    plt.close(figure)
