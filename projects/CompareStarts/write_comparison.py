"""What a comparison of starts says: a table, a plot, a sentence, and results.json for a report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from projects.CompareStarts.label_curves import Equivalence, LabelCurve, equivalences, sentence, worth
from projects.CompareStarts.starts import RANDOM
from projects.CompareStarts.task import Task
from projects.CompareStarts.trainings import last_metric
from projects.CompareStarts.unlabelled import without_teacher
from projects.Paper.cells import Cell
from projects.Paper.result_table import NONE, ours
from projects.Pictures.curves import saved_plot
from revisit.errors import without_secrets
from revisit.files import make_folder, strict_json, write_whole
from revisit.jobs.record import Record
from revisit.markdown import csv_table, deviation, markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


OF_SEEDS = (
    "What differs is settled by a paired t-test over seeds, corrected for the numbers of labels: of equal starts, 5 in "
    "100 comparisons name a difference. Bands are mean ± standard deviation over seeds. In brackets: where the two "
    "bands begin and end to overlap."
)
OF_ONE_SEED = "Of one seed every difference is named."


def tables_in(root: Path, how: str) -> Path:
    """The folder of a comparison's tables, which is made. Raises UserError where another way of comparing has its own
    there."""
    make_folder(root, "--output")
    Record(root, {"--how": how}, "how.json").claim()
    folder = root / "comparison"
    folder.mkdir(exist_ok=True)
    return folder


def write_comparison(task: Task, cells: list[Cell], seeds: Sequence[int], folder: Path) -> str:
    """Write table.md, scores.csv, results.json and, once there is a score, labels.png; returns the Markdown.

    Every start is compared with random weights, or with the first one where these are not among the starts; one with a
    teacher with the same without. Cells whose seeds are not all finished stand in the table, and are not compared.
    """
    score = task.score_name
    lower = task.sign < 0
    curves = finished_curves(cells)
    others = _others(list(curves))
    compared = {
        name: equivalences(curves[name], curves[other], lower_is_better=lower) for name, other in others.items()
    }
    sentences = [sentence(name, others[name], points, seeds=len(seeds)) for name, points in compared.items()]
    sentences += _what_lacks(cells, score)
    worths = _worths(compared, others)
    listed = "\n".join(f"- {each['start']}: {each['worth']}" for each in worths)
    protocol = _protocol(task, seeds)
    note = (
        f"{protocol}. {OF_SEEDS if len(seeds) > 1 else OF_ONE_SEED} Between the measured numbers of labels, scores are "
        "interpolated over their logarithm."
    )
    note += "" if task.frozen else " Seconds are the mean over seeds, for each number of labels, without evaluation."
    table = _table(task, cells, 3 if lower else 1)
    markdown = "\n\n".join(filter(None, [table, *sentences, listed, note]))
    results = {
        "protocol": protocol,
        "weights": ", ".join(curves),
        "sentence": " ".join(sentences),
        "worth": worths,
    }
    write_texts(folder, {"table.md": markdown, "scores.csv": _csv(task, cells), "results.json": strict_json(results)})
    plot_scores(list(curves.values()), score, "labelled images", folder / "labels.png")
    return markdown


def _others(names: Sequence[str]) -> dict[str, str]:
    """Which start each one is compared with, by their names; the one for all others is not among them."""
    reference = RANDOM if RANDOM in names else names[0]
    others = {}
    for name in names:
        plain = without_teacher(name)
        other = plain if plain != name else reference
        if name != other:
            others[name] = other
    return others


def _protocol(task: Task, seeds: Sequence[int]) -> str:
    """How the scores were made, in words."""
    better = ", lower is better" if task.sign < 0 else ""
    features = "frozen features" if task.frozen else "finetuning"
    return (
        f"{task.score_name}{better}, by {features} with {task.config} on labelled images of {task.data}, "
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    )


def _what_lacks(cells: Sequence[Cell], score: str) -> list[str]:
    """A sentence on the cells without a defined score, and one on those that are not finished, where there are any."""
    sentences = []
    undefined = sum(any(map(math.isnan, cell.values())) for cell in cells)
    if undefined:
        sentences.append(
            f"{undefined} of {len(cells)} cells have no {score}: the test set has nothing that it scores, or a "
            "training failed. They are not compared."
        )
    unfinished = sum(len(cell.values()) < len(cell.jobs) for cell in cells)
    if unfinished:
        sentences.append(f"So far: {unfinished} of {len(cells)} cells are not finished.")
    return sentences


def _worths(compared: Mapping[str, Sequence[Equivalence]], others: Mapping[str, str]) -> list[dict[str, str | int]]:
    """Of every start and number of labels, what they are worth against the start that it is compared with, in words."""
    worths: list[dict[str, str | int]] = []
    for name, points in compared.items():
        measured = [point.labels for point in points]
        for point in points:
            worths.append({"start": name, "labels": point.labels, "worth": worth(point, others[name], measured)})
    return worths


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts by the names of their files."""
    for name, text in texts.items():
        write_whole(folder / name, without_secrets(text) + "\n")


def finished_curves(cells: list[Cell]) -> dict[str, LabelCurve]:
    """By start, the scores of the cells whose seeds are all finished and have one."""
    curves = {cell.row: LabelCurve(cell.row, {}) for cell in cells}
    for cell in cells:
        if len(values := cell.values()) == len(cell.jobs) and not any(map(math.isnan, values)):
            curves[cell.row].scores[int(cell.column)] = values
    return curves


def plot_scores(curves: Sequence[LabelCurve], score: str, over: str, path: Path) -> None:
    """Means over the numbers of what ``over`` says, logarithmic, with their bands and the score of every seed; nothing
    before the first score."""
    if not any(curve.scores for curve in curves):
        return
    with saved_plot(path, size=(6, 4)) as (axis,):
        for number, curve in enumerate(curves):
            bands = [(count, curve.mean(count), curve.deviation(count)) for count in curve.scores]
            dots = [(count, value) for count, values in curve.scores.items() for value in values]
            draw_band(axis, curve.start, bands, dots, number)
        counts = sorted({count for curve in curves for count in curve.scores})
        axis.set_xscale("log")
        axis.set_xticks(counts, [f"{count:,}" for count in counts])
        axis.set_xticks([], minor=True)
        axis.set(xlabel=over, ylabel=score)


def draw_band(
    axis: Axes, start: str, bands: Sequence[tuple[float, ...]], dots: Sequence[tuple[float, float]], number: int
) -> None:
    """A start's means with their band, in the colour of its number, and a dot for each training.

    Args:
        bands: place, mean and deviation, along the axis.
        dots: place and score.
    """
    look = {"color": f"C{number % 10}"}
    places, means, deviations = np.array(bands).reshape(-1, 3).T
    axis.plot(places, means, marker="o", label=start, **look)
    axis.fill_between(places, means - deviations, means + deviations, alpha=0.2, linewidth=0, **look)
    axis.scatter(*np.array(dots).reshape(-1, 2).T, s=6, alpha=0.6, **look)


def _table(task: Task, cells: list[Cell], digits: int) -> str:
    """Scores by start and number of labels; of trainings also what one costs."""
    unit, metric = task.cost
    counts = dict.fromkeys(cell.column for cell in cells)
    headers = ["labelled images", *(f"{int(count):,}{' (all)' * (int(count) == task.total)}" for count in counts)]
    headers += [] if task.frozen else [f"{unit} of a training"]
    rows = []
    for start in dict.fromkeys(cell.row for cell in cells):
        of_start = [cell for cell in cells if cell.row == start]
        costs = [] if task.frozen else [", ".join(_in_words(seconds(cell, metric)) for cell in of_start)]
        rows.append([start, *(ours(cell, digits) for cell in of_start), *costs])
    return markdown_table(headers, rows)


def seconds(cell: Cell, metric: str) -> float:
    """What one of a cell's trainings has cost, the mean over its finished seeds; NaN where nothing says it.

    ``metric`` names the seconds in metrics.json.
    """
    values = [last_metric(job.result.parent, metric) for job in cell.jobs if job.done and job.owns_result]
    return statistics.fmean(values) if values else math.nan


def _in_words(value: float) -> str:
    return NONE if math.isnan(value) else f"{value:,.0f}"


def _csv(task: Task, cells: list[Cell]) -> str:
    _, metric = task.cost
    rows = []
    for cell in cells:
        values = cell.values()
        mean = statistics.mean(values) if values else math.nan
        scored = not math.isnan(mean)
        numbers = [f"{mean:.4f}" if scored else "", f"{deviation(values):.4f}" if scored and values[1:] else ""]
        cost = seconds(cell, metric)
        spent = "" if math.isnan(cost) else f"{cost:.1f}"
        rows.append([cell.row, cell.column, *numbers, " ".join(map(str, values)), len(cell.jobs), spent])
    return csv_table(["start", "labels", "mean", "deviation", "values", "seeds", "seconds"], rows).rstrip("\n")
