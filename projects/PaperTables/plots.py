"""Pictures of a study: scores against k and lambda, neighbour purity against iterations."""

from __future__ import annotations

import statistics
from pathlib import Path

from projects.PaperTables.toy import METRICS, SWEEP_CENTER
from revisit.viz.curves import headless_pyplot, read_metrics

SYMBOLS = {"KNN_MOCO.NUM_NEIGHBORS": "k", "KNN_MOCO.WEIGHT": "lambda"}


def sweep_points(results: list[dict], key: str) -> list[tuple[float, dict]]:
    """Results that differ from the sweep's centre in ``key`` alone, or not at all: (value, result) in order."""

    def on_the_line(overrides: dict[str, str]) -> bool:
        rest = {name: str(value) for name, value in SWEEP_CENTER.items() if name != key}
        return {name: value for name, value in overrides.items() if name != key} == rest

    points = [(float(result["overrides"][key]), result) for result in results if on_the_line(result["overrides"])]
    return sorted(points, key=lambda point: point[0])


def plot_sweeps(results: list[dict], output: Path) -> None:
    """Held-out accuracy, mean and deviation over seeds, against k and against lambda."""
    plt = headless_pyplot()
    figure, axes = plt.subplots(1, len(SYMBOLS), figsize=(10, 4), sharey=True, layout="constrained")
    for axis, (key, symbol) in zip(axes, SYMBOLS.items(), strict=True):
        for train_set in dict.fromkeys(result["train_set"] for result in results if result["train_set"]):
            points = sweep_points([r for r in results if r["train_set"] == train_set], key)
            for metric in METRICS:
                scores = [result[metric] for _, result in points]
                spread = [statistics.stdev(s) if len(s) > 1 else 0.0 for s in scores]
                means = [statistics.mean(s) for s in scores]
                axis.errorbar(
                    [x for x, _ in points], means, spread, marker="o", capsize=3, label=f"{train_set}, {metric}"
                )
        fixed = ", ".join(f"{SYMBOLS[name]} {value}" for name, value in SWEEP_CENTER.items() if name != key)
        axis.set_xlabel(f"{symbol}, at {fixed}")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("held-out top-1 (%)")
    axes[0].legend(fontsize=8, frameon=False)
    figure.savefig(output, dpi=110)
    plt.close(figure)


def plot_purity(runs: dict[str, list[Path]], output: Path) -> bool:
    """Neighbour purity of every run that has it, a colour a row; False where no run has any.

    Args:
        runs: metrics.json of each seed by the row's label.
    """
    series = {label: [read_metrics(file).get("neighbor_purity") for file in files] for label, files in runs.items()}
    if not any(line for lines in series.values() for line in lines):
        return False
    plt = headless_pyplot()
    figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
    for number, (label, lines) in enumerate(series.items()):
        for seed, line in enumerate(line for line in lines if line):
            axis.plot(*zip(*line, strict=True), color=f"C{number % 10}", alpha=0.7, label=None if seed else label)
    axis.set_xlabel("iteration")
    axis.set_ylabel("neighbours of the same class (%)")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, frameon=False)
    figure.savefig(output, dpi=110)
    plt.close(figure)
    return True
