"""What a comparison until scores are flat says: tables, a plot of scores against costs, sentences, results.json."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from projects.common.tables import csv_table, deviation, markdown_table, mean_and_spread
from projects.CompareStarts.flat import judge
from projects.CompareStarts.label_curves import first_reaching
from projects.CompareStarts.trainings import Training
from projects.CompareStarts.until_flat import Curve, Point, UntilFlat
from projects.CompareStarts.write_comparison import write_texts
from revisit.evaluation.main_score import direction
from revisit.files import strict_json
from revisit.viz.curves import saved_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NONE = "–"


class Row(NamedTuple):
    """A start with so many labelled images: a curve for each seed, and what has made the start, s."""

    start: str
    curves: Sequence[Curve]
    before: float

    @property
    def is_begun(self) -> bool:
        return all(curve.points for curve in self.curves)

    @property
    def has_ended(self) -> bool:
        return all(curve.has_ended for curve in self.curves)

    @property
    def is_flat(self) -> bool:
        return all(curve.is_flat for curve in self.curves)

    @property
    def ends(self) -> list[float]:
        """Scores of the seeds at their ends."""
        return [curve.last.score for curve in self.curves]

    @property
    def cost(self) -> float:
        """In all at the end, the mean over seeds, s."""
        return self.before + statistics.fmean(curve.last.seconds for curve in self.curves)

    def of_length(self, times: int) -> list[Point]:
        return [point for curve in self.curves for point in curve.points if point.times == times]

    def steps(self) -> list[tuple[float, list[float]]]:
        """Seconds in all and the scores of all seeds: of lengths that all have, then at the end if that is later."""
        lengths = dict.fromkeys(point.times for curve in self.curves for point in curve.points)
        rows = [self.of_length(times) for times in lengths]
        steps = [
            (self.before + statistics.fmean(point.seconds for point in row), [point.score for point in row])
            for row in rows
            if len(row) == len(self.curves)
        ]
        return [*steps, (self.cost, self.ends)] if self.cost > steps[-1][0] else steps


class FlatReport(NamedTuple):
    """What is written of a comparison.

    ``before`` has the seconds that each start has cost, ``unknown`` the starts of which nothing says it, whose seconds
    count as 0; ``reference`` is the start whose score at its end the others' times are for.
    """

    comparison: UntilFlat
    before: Mapping[str, float]
    unknown: Sequence[str]
    reference: str

    def write(self, folder: Path) -> str:
        """Write table.md, scores.csv, results.json and curves.png; returns the Markdown."""
        curves = self.comparison.curves()
        by_labels = {count: self._rows(count, curves) for count in self.comparison.labels}
        sentences = [self._sentence(count, rows) for count, rows in by_labels.items()]
        parts = []
        for (count, rows), sentence in zip(by_labels.items(), sentences, strict=True):
            parts += [f"### {self._labels(count)}", self._table(rows), sentence]
        markdown = "\n\n".join([*parts, self._note()])
        results = {
            "protocol": self._protocol(),
            "weights": ", ".join(self.comparison.trainings.starts),
            "sentence": " ".join(sentences),
            "seconds_before": dict(self.before),
            "curves": [curve._asdict() | {"points": [point._asdict() for point in curve.points]} for curve in curves],
        }
        texts = {"table.md": markdown, "scores.csv": self._csv(), "results.json": strict_json(results)}
        folder.mkdir(exist_ok=True)
        write_texts(folder, texts)
        self._plot(by_labels, folder / "curves.png")
        return markdown

    def _rows(self, count: int, curves: Sequence[Curve]) -> list[Row]:
        of_start = {
            start: [curve for curve in curves if (curve.start, curve.labels) == (start, count)] for start in self.before
        }
        return [Row(start, of_seeds, self.before[start]) for start, of_seeds in of_start.items()]

    @property
    def _score(self) -> str:
        return "/".join(self.comparison.trainings.task.score)

    def _shown(self, scores: Sequence[float]) -> str:
        return mean_and_spread(scores, self._digits)

    @property
    def _digits(self) -> int:
        return 3 if direction(self._score) < 0 else 1

    def _labels(self, count: int) -> str:
        learned = self.comparison.trainings.learned(count)
        held = f": {learned:,} to learn from, {count - learned:,} held out" if learned < count else ""
        return f"{count:,} labelled images{held}"

    def _protocol(self) -> str:
        task, seeds = self.comparison.trainings.task, self.comparison.seeds
        better = ", lower is better" if direction(self._score) < 0 else ""
        numbers = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        return f"{self._score}{better}, by finetuning with {task.config} until it is flat, on {task.data}, {numbers}"

    def _table(self, rows: Sequence[Row]) -> str:
        lengths = sorted({point.times for row in rows for curve in row.curves for point in curve.points})
        reached = self._goal(rows)
        shown = "" if reached is None else f" ({reached:.{self._digits}f})"
        headers = ["start", "s before", "learning rate", *(f"{times}x" for times in lengths), "end", "at", "s in all"]
        lines = [[*self._line(row, lengths), self._time_to(row, reached)] for row in rows]
        return markdown_table([*headers, f"s in all to the end of {self.reference}{shown}"], lines)

    def _line(self, row: Row, lengths: Sequence[int]) -> list[str]:
        before = "unknown" if row.start in self.unknown else f"{row.before:,.0f}"
        cells = [self._cell(row, times) for times in lengths]
        if not row.is_begun:
            return [row.start, before, NONE, *cells, "not yet", NONE, NONE]
        rates = self._each(f"{self.comparison.trainings.learning_rate(training_of(curve)):.3g}" for curve in row.curves)
        rising = "" if row.is_flat else " (still rising)"
        end = f"{self._shown(row.ends)}{rising}" if row.has_ended else "not yet"
        at = self._each(f"{curve.last.times}x" for curve in row.curves)
        return [row.start, before, rates, *cells, end, at, f"{row.cost:,.0f}"]

    @staticmethod
    def _each(words: Iterable[str]) -> str:
        """Of all seeds, once where they are the same."""
        of_seeds = list(words)
        return of_seeds[0] if len(set(of_seeds)) == 1 else ", ".join(of_seeds)

    def _cell(self, row: Row, times: int) -> str:
        """Score and seconds of one training."""
        points = row.of_length(times)
        if not points:
            return NONE
        seconds = statistics.fmean(point.seconds for point in points)
        few = f", {len(points)} of {len(row.curves)} seeds" * (len(points) < len(row.curves))
        return f"{self._shown([point.score for point in points])} ({seconds:,.0f} s{few})"

    def _goal(self, rows: Sequence[Row]) -> float | None:
        """The reference's score at its end."""
        (row,) = (row for row in rows if row.start == self.reference)
        score = statistics.fmean(row.ends) if row.is_begun else math.nan
        return None if math.isnan(score) else score

    def _time_to(self, row: Row, score: float | None) -> str:
        """After how many seconds in all the mean score reaches this one, along the logarithm of the seconds."""
        if score is None or not row.is_begun:
            return NONE
        goodness = self.comparison.goodness
        costs = [cost for cost, _ in row.steps()]
        values = [goodness(statistics.fmean(scores)) for _, scores in row.steps()]
        if values[0] >= goodness(score):
            return f"at most {costs[0]:,.0f}"
        reached = first_reaching(costs, values, goodness(score))
        return f"{reached:,.0f}" if reached else f"not within {costs[-1]:,.0f}"

    def _sentence(self, count: int, rows: Sequence[Row]) -> str:
        with_labels = f"With {count:,} labelled images"
        if not all(row.is_begun for row in rows):
            return f"{with_labels} not all starts have trained yet."
        goodness = self.comparison.goodness
        verdict = judge({row.start: list(map(goodness, row.ends)) for row in rows})
        shown = {row.start: self._shown(row.ends) for row in rows}
        rising = [row.start for row in rows if not row.is_flat]
        unsettled = f" Not yet flat: {', '.join(rising)}." if rising else ""
        best = f"{with_labels} {verdict.best} is best at the end, {self._score} {shown[verdict.best]}"
        if math.isnan(verdict.limit):
            return f"{best}. One seed says nothing of chance.{unsettled}"
        limit = f"{verdict.limit:.{self._digits}f}"
        if not verdict.equal:
            gain = f"better than all others by {min(verdict.gains.values()):.{self._digits}f} or more"
            return f"{best}: {gain}, chance alone reaches {limit}.{unsettled}"
        others = ", ".join(f"{name} ({shown[name]})" for name in verdict.equal)
        return f"{best}; equal to it: {others}, as chance alone makes differences up to {limit}.{unsettled}"

    def _csv(self) -> str:
        """A line for each training that has ended."""
        trainings = self.comparison.trainings
        rows = []
        for each in self.comparison.ended():
            held, test = trainings.held_out_score(each), trainings.test_score(each)
            numbers = [trainings.iterations(each), f"{trainings.learning_rate(each):.3g}", held, test]
            costs = [f"{trainings.seconds(each):.1f}", f"{self.before[each.start]:.1f}"]
            rows.append([each.start, each.labels, each.seed, each.times, *numbers, *costs])
        headers = ["start", "labels", "seed", "times", "iterations", "learning rate", "held out", "test"]
        return csv_table([*headers, "seconds", "seconds before"], rows).rstrip("\n")

    def _note(self) -> str:
        comparison, rule = self.comparison, self.comparison.rule
        unit, name = comparison.trainings.unit, comparison.trainings.held_out.name
        images = name or "a part of the labelled images, the same for all starts, which none learns from"
        lines = [
            f"{self._protocol()}. Seconds are {unit} of one training, without its last evaluation; in all: with those "
            "that made the start.",
            f"Each seed chooses its learning rate (x1/3, x1, x3 of the recipe's, at 1x) and its length on {images}.",
            f"The end is the last length whose score there rose by more than {rule.tolerance:g}, with {rule.patience} "
            "longer that did not.",
            "Starts are compared at their ends by Tukey's test over seeds, of two starts the 95 % t interval of their "
            "paired differences: of equal starts, 5 in 100 comparisons call one different.",
        ]
        if self.unknown:
            known = "nothing says what it has cost, so 0 is counted: give --spent NAME=SECONDS"
            lines.append(f"{', '.join(self.unknown)}: {known}.")
        return " ".join(lines)

    def _plot(self, by_labels: Mapping[int, Sequence[Row]], path: Path) -> None:
        """Score against seconds in all, a line for each start, a dot for each seed; nothing before the first score."""
        shown = {count: [row for row in rows if row.is_begun] for count, rows in by_labels.items()}
        shown = {count: rows for count, rows in shown.items() if rows}
        if not shown:
            return
        with saved_plot(path, len(shown), size=(6, 4)) as axes:
            for axis, (count, rows) in zip(axes, shown.items(), strict=True):
                for number, row in enumerate(rows):
                    draw(axis, row, f"C{number % 10}")
                axis.set_xscale("log")
                axis.set_title(f"{count:,} labelled images", fontsize=9)
                axis.set(xlabel=f"{self.comparison.trainings.unit} in all", ylabel=self._score)


def training_of(curve: Curve) -> Training:
    return Training(curve.start, curve.labels, curve.seed, 1, curve.rate)


def draw(axis: Axes, row: Row, color: str) -> None:
    """Means with their band, mean ± standard deviation, and a dot for each training."""
    costs, scores = zip(*row.steps(), strict=True)
    means = [statistics.fmean(of_seeds) for of_seeds in scores]
    edges = [[statistics.fmean(s) + side * deviation(s) for s in scores] for side in (-1, 1)]
    axis.plot(costs, means, color=color, marker="o", label=row.start)
    axis.fill_between(costs, *edges, color=color, alpha=0.2, linewidth=0)
    points = [point for curve in row.curves for point in curve.points]
    seconds = [row.before + point.seconds for point in points]
    axis.scatter(seconds, [point.score for point in points], color=color, s=6, alpha=0.6)
