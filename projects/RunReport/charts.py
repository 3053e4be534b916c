"""What a report says of metrics: for each a small plot with a line for each run, as plotly's script takes them; which
are scores, which value was the best, how fast the run was."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from projects.RunReport.collect import Point, ReportedRun
from revisit.evaluation.main_score import direction, pretraining_scores
from revisit.files import read_yaml

LOSSES = ("total_loss", "loss_inst", "loss_nn_raw")
TOP1 = tuple(score.name for score in pretraining_scores())
COUNTERS = ("roi_head/", "rpn/", "fast_rcnn/", "mask_rcnn/", "keypoint_head/")  # of Detectron2's training, no scores
FOLDED = "Other numbers"
# Readable on white and on black; dashes are for more runs than colours.
COLORS = ("#2f7fd1", "#e1772f", "#2a9d74", "#b45fc2", "#d94f5c", "#8f8a2a", "#1f9fb4", "#a0703c")
DASHES = ("solid", "dash", "dot")
MOST_POINTS = 500  # of a curve, which is some 350 px wide

KNOWN: dict[str, dict[str, list[str]]] = read_yaml(Path(__file__).with_name("plots.yaml"))
TITLES = {metric: title for plots in KNOWN.values() for metric, (title, *_) in plots.items()}


def line_of(number: int) -> dict[str, str]:
    """Colour and dash of the run of that number."""
    return {"color": COLORS[number % len(COLORS)], "dash": DASHES[number // len(COLORS) % len(DASHES)]}


def make_plots(runs: list[tuple[int, ReportedRun]]) -> dict[str, list[tuple[str, str, list[dict]]]]:
    """Title, note and lines of every metric that changes in any of the runs, by group; scores of classes have none."""
    metrics = [name for name in dict.fromkeys(name for _, run in runs for name in run.series) if _changes(name, runs)]
    others = {name: (name, "") for name in metrics if name not in TITLES}
    losses = {name: plot for name, plot in others.items() if "loss" in name and "/" not in name}
    scores = {name: plot for name, plot in others.items() if is_score(name)}
    rest = {name: plot for name, plot in others.items() if "-" not in name and name not in losses | scores}
    groups = KNOWN | {"Losses": KNOWN["Losses"] | losses, "Scores": KNOWN["Scores"] | scores, FOLDED: rest}
    plots = {
        group: [
            (plot[0], _note(name, plot, runs), _lines(name, runs)) for name, plot in known.items() if name in metrics
        ]
        for group, known in groups.items()
    }
    return {group: drawn for group, drawn in plots.items() if drawn}


def _note(metric: str, plot: Sequence[str], runs: list[tuple[int, ReportedRun]]) -> str:
    """What to look for in a plot of plots.yaml; nothing, where it holds for other methods than those drawn."""
    _, note, *methods = plot
    drawn = {run.config.get("MODEL.META_ARCHITECTURE") for _, run in runs if metric in run.series}
    return note if not methods or drawn <= set(methods) else ""


def losses_of(runs: list[ReportedRun]) -> list[str]:
    """The losses that a table shows of these runs."""
    return [name for name in LOSSES if any(name in run.series for run in runs)]


def constants(runs: list[tuple[int, ReportedRun]]) -> dict[str, list[float]]:
    """The values of metrics that have no plot because no run has two of them; those of classes are left out."""
    names = dict.fromkeys(name for _, run in runs for name in run.series if "-" not in name)
    last = {name: [run.series[name][-1][1] for _, run in runs if name in run.series] for name in names}
    return {name: list(dict.fromkeys(values)) for name, values in last.items() if not _changes(name, runs)}


def _changes(name: str, runs: list[tuple[int, ReportedRun]]) -> bool:
    return any(len({value for _, value in run.series.get(name, ())}) > 1 for _, run in runs)


def thinned(points: list[Point], most: int = MOST_POINTS) -> list[Point]:
    """The points; of a longer curve the lowest and the highest of each stretch, so that spikes stay."""
    if len(points) <= most:
        return points
    values = np.array([value for _, value in points])
    stretches = np.array_split(np.arange(len(points)), most // 2)
    # A value that is no number wins both.
    ends = {int(stretch[pick(values[stretch])]) for stretch in stretches for pick in (np.argmin, np.argmax)}
    return [points[number] for number in sorted(ends | {0, len(points) - 1})]


def is_score(name: str) -> bool:
    """Whether a metric is a score of a data set as a whole; a dash stands before a class's name."""
    return name.startswith(TOP1) or ("/" in name and "-" not in name and not name.startswith(COUNTERS))


def best_before(name: str, points: list[Point]) -> Point | None:
    """The best value of a metric if it is not the last; None where the code does not know which way is better."""
    way = direction(name)
    defined = [point for point in points if not math.isnan(point[1])]
    best = max(defined, key=lambda point: way * point[1]) if way and defined else points[-1]
    return best if best[0] != points[-1][0] else None


def speed(run: ReportedRun) -> float | None:
    """Images per second, the median over the run; the first value is that of a loader and caches still cold."""
    values = [value for _, value in run.series.get("images_per_second", ())]
    return statistics.median(values[1:] or values) if values else None


def _lines(metric: str, runs: list[tuple[int, ReportedRun]]) -> list[dict]:
    """Plotly's traces, one for each run that has the metric."""
    curves = [(number, run.name, thinned(run.series.get(metric, []))) for number, run in runs]
    return [
        {
            "x": [iteration for iteration, _ in points],
            "y": [float(f"{value:.6g}") for _, value in points],
            "name": name,
            # A single point makes no line, and scores are few enough to be seen one by one.
            "mode": "lines+markers" if len(points) < 40 else "lines",
            "line": {**line_of(number), "width": 1.8 if len(points) < 100 else 1.2},
        }
        for number, name, points in curves
        if points
    ]
