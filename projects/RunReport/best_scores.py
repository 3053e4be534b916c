"""A run in one line: its last losses, its best and last scores, its speed."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from projects.RunReport.collect import Run

LOSSES = ("total_loss", "loss_inst", "loss_nn_raw")
TOP1 = ("knn_top1", "linear_top1")
HIGHER_IS_BETTER = (*TOP1, "bbox/AP", "segm/AP", "sem_seg/mIoU")


@dataclass(frozen=True)
class Score:
    """A metric that is measured now and then."""

    last: float
    iteration: int  # of the last
    best: float | None = None  # None where the code does not know which way is better
    best_iteration: int | None = None


@dataclass(frozen=True)
class Summary:
    """What the first table says about a run."""

    run: Run
    losses: dict[str, tuple[int, float]]  # iteration and value of the last, by name
    scores: dict[str, Score]
    images_per_second: float | None  # median over the run


def is_score(name: str) -> bool:
    """Whether a metric is a score of a data set as a whole; a dash stands before a class's name."""
    return name.startswith(TOP1) or ("/" in name and "-" not in name)


def summarize(run: Run) -> Summary:
    """A run's last losses, scores and speed, from its metrics."""
    series = {name: values for name, values in run.series.items() if values}
    speeds = [value for _, value in series.get("images_per_second", ())]
    return Summary(
        run=run,
        losses={name: series[name][-1] for name in LOSSES if name in series},
        scores={name: _score(name, values) for name, values in series.items() if is_score(name)},
        # The first value is that of a loader and caches that are still cold.
        images_per_second=statistics.median(speeds[1:] or speeds) if speeds else None,
    )


def _score(name: str, values: list[tuple[int, float]]) -> Score:
    iteration, last = values[-1]
    if not name.startswith(HIGHER_IS_BETTER):
        return Score(last, iteration)
    best_iteration, best = max(values, key=lambda value: value[1])
    return Score(last, iteration, best, best_iteration)
