"""What a report says of metrics: for each a small plot with a line for each run, as plotly's script takes them; which
are scores, which value was the best, how fast the run was."""

import html
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from projects.Reports.collect import NumberedRuns, Point, ReportedRun
from projects.Reports.main_score import direction, is_of_class, pretraining_scores
from revisit.files import read_yaml

LOSSES = ("total_loss", "loss_inst", "loss_nn_raw")
TOP1 = tuple(score.name for score in pretraining_scores())
COUNTERS = ("roi_head/", "rpn/", "fast_rcnn/", "mask_rcnn/", "keypoint_head/")  # of Detectron2's training, no scores
FOLDED = "Other numbers"
# Readable on white and on black; dashes are for more runs than colours.
COLORS = ("#2f7fd1", "#e1772f", "#2a9d74", "#b45fc2", "#d94f5c", "#8f8a2a", "#1f9fb4", "#a0703c")
DASHES = ("solid", "dash", "dot")
MOST_POINTS = 500  # of a curve, which is some 350 px wide
FEW_TO_MARK, FEW_FOR_A_LINE = 40, 100  # points; fewer have markers, and a thicker line

Plot = tuple[str, str, list[dict]]  # title, note, lines
KNOWN: dict[str, dict[str, list[str]]] = read_yaml(Path(__file__).with_name("plots.yaml"))
TITLES = {metric: title for plots in KNOWN.values() for metric, (title, *_) in plots.items()}


def line_of(number: int) -> dict[str, str]:
    """Colour and dash of the run of that number."""
    round_of_colors, color = divmod(number, len(COLORS))
    return {"color": COLORS[color], "dash": DASHES[round_of_colors % len(DASHES)]}


def make_plots(runs: NumberedRuns) -> dict[str, list[Plot]]:
    """Title, note and lines of every metric that changes in any of the runs, by group; scores of classes have none."""
    plots: dict[str, list[Plot]] = {}
    changing = [name for name in _metrics(runs) if _changes(name, runs)]
    for group, described in _groups(changing).items():
        for name, (title, note, *methods) in described.items():
            if name not in changing:
                continue
            note = note if _holds_for(methods, name, runs) else ""
            plot = title, note, _lines(name, runs)
            plots.setdefault(group, []).append(plot)
    return plots


def _groups(metrics: list[str]) -> dict[str, dict[str, Sequence[str]]]:
    """The plots of plots.yaml, by group and metric; with those of other metrics among the losses, the scores, or in a
    group of their own."""
    others = {name: (name, "") for name in metrics if name not in TITLES}
    losses = {name: plot for name, plot in others.items() if "loss" in name and "/" not in name}
    scores = {name: plot for name, plot in others.items() if is_score(name)}
    rest = {name: plot for name, plot in others.items() if not is_of_class(name) and name not in losses | scores}
    return KNOWN | {"Losses": KNOWN["Losses"] | losses, "Scores": KNOWN["Scores"] | scores, FOLDED: rest}


def _holds_for(methods: Sequence[str], metric: str, runs: NumberedRuns) -> bool:
    """Whether all runs that have the metric are of these methods; none named are all."""
    if not methods:
        return True
    return all(run.config.get("MODEL.META_ARCHITECTURE") in methods for _, run in runs if metric in run.series)


def _metrics(runs: NumberedRuns) -> list[str]:
    """The names of all metrics, as they first occur."""
    return list(dict.fromkeys(name for _, run in runs for name in run.series))


def losses_of(runs: list[ReportedRun]) -> list[str]:
    """The losses that a table shows of these runs."""
    occurring = set().union(*(run.series for run in runs))
    return [name for name in LOSSES if name in occurring]


def constants(runs: NumberedRuns) -> dict[str, list[float]]:
    """The values of metrics that have no plot because no run has two of them; those of classes are left out."""
    values: dict[str, list[float]] = {}
    for name in _metrics(runs):
        if is_of_class(name) or _changes(name, runs):
            continue
        series = [run.series[name] for _, run in runs if name in run.series]
        last = [value for *_, (_, value) in series]
        values[name] = list(dict.fromkeys(last))
    return values


def _changes(name: str, runs: NumberedRuns) -> bool:
    """Whether any of the runs has two values of a metric; what is undefined (NaN) is none."""
    values = ({value for _, value in run.series.get(name, ()) if not math.isnan(value)} for _, run in runs)
    return any(len(of_run) > 1 for of_run in values)


def thinned(points: list[Point], most: int = MOST_POINTS) -> list[Point]:
    """The points; of a longer curve the lowest and the highest of each stretch, so that spikes stay."""
    if len(points) <= most:
        return points
    values = np.array([value for _, value in points])
    kept = {0, len(points) - 1}
    for stretch in np.array_split(np.arange(len(points)), most // 2):
        of_stretch = values[stretch]
        lowest, highest = stretch[of_stretch.argmin()], stretch[of_stretch.argmax()]  # what is no number is both
        kept |= {int(lowest), int(highest)}
    return [points[number] for number in sorted(kept)]


def is_score(name: str) -> bool:
    """Whether a metric is a score of a data set as a whole."""
    return name.startswith(TOP1) or ("/" in name and not is_of_class(name) and not name.startswith(COUNTERS))


def best_before(name: str, points: list[Point]) -> Point | None:
    """The best value of a metric if it is not the last; None where the code does not know which way is better."""
    way = direction(name)
    defined = [point for point in points if not math.isnan(point[1])]
    if not way or not defined:
        return None
    best = max(defined, key=lambda point: way * point[1])
    last_iteration, _ = points[-1]
    return best if best[0] != last_iteration else None


def decimals(value: float, places: int) -> str:
    """A number with so many digits after its point; a small one with three that say something."""
    return f"{value:.3g}" if 0 < abs(value) < 10 ** (1 - places) else f"{value:,.{places}f}"


def speed(run: ReportedRun) -> float | None:
    """Images per second, the median over the run; the first value is that of a loader and caches still cold."""
    values = [value for _, value in run.series.get("images_per_second", ())]
    if not values:
        return None
    warm = values[1:] or values
    return statistics.median(warm)


def escaped(name: str) -> str:
    """A name that plotly shows as it is: it takes <...> for a style, and &lt; for a sign."""
    return html.escape(name, quote=False)


def _lines(metric: str, runs: NumberedRuns) -> list[dict]:
    """Plotly's traces, one for each run that has the metric."""
    traces = []
    for number, run in runs:
        points = thinned(run.series.get(metric, []))
        if not points:
            continue
        width = 1.8 if len(points) < FEW_FOR_A_LINE else 1.2  # px
        trace = {
            "x": [iteration for iteration, _ in points],
            "y": [float(f"{value:.6g}") for _, value in points],
            "name": escaped(run.name),
            # A single point makes no line, and scores are few enough to be seen one by one.
            "mode": "lines+markers" if len(points) < FEW_TO_MARK else "lines",
            "line": {**line_of(number), "width": width},
        }
        traces.append(trace)
    return traces
