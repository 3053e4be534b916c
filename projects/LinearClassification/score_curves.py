"""Pictures of the study."""

from __future__ import annotations

from pathlib import Path

from revisit.viz.curves import headless_pyplot

from .logistic import PathPoint


def plot_path(path: list[PathPoint], score: str, output: Path) -> None:
    """The validation score against lambda; fits that did not converge are hollow."""
    plt = headless_pyplot()
    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    axis.plot([point.strength for point in path], [point.score for point in path], color="C0", alpha=0.5)
    for converged, face in ((True, "C0"), (False, "white")):
        points = [point for point in path if point.converged == converged]
        label = "converged" if converged else "stopped at LINEAR.MAX_ITER"
        if points:
            axis.scatter(
                [p.strength for p in points], [p.score for p in points], color="C0", facecolor=face, label=label
            )
    axis.set_xscale("log")
    axis.set_xlabel("lambda")
    axis.set_ylabel(f"{score} on the validation images (%)")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, frameon=False)
    figure.savefig(output, dpi=110)
    plt.close(figure)


def plot_history(history: list[dict], output: Path) -> None:
    """Loss and accuracies by epoch."""
    plt = headless_pyplot()
    figure, (losses, accuracies) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    epochs = range(1, len(history) + 1)
    losses.plot(epochs, [row["loss"] for row in history])
    losses.set_ylabel("loss on random crops")
    for name in ("top1", "top5"):
        accuracies.plot(epochs, [row[name] for row in history], label=name)
    accuracies.set_ylabel("test images right (%)")
    accuracies.legend(fontsize=8, frameon=False)
    for axis in (losses, accuracies):
        axis.set_xlabel("epoch")
        axis.grid(alpha=0.3)
    figure.savefig(output, dpi=110)
    plt.close(figure)
