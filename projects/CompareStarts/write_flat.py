"""What a comparison until scores are flat says: tables, a plot of scores against costs, sentences, results.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from projects.common.tables import csv_table, deviation, markdown_table, mean_and_spread
from projects.CompareStarts.flat import Verdict, judge
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
        by_labels = {count: self.comparison.curves(count) for count in self.comparison.labels}
        sentences = [self._sentence(count, curves) for count, curves in by_labels.items()]
        parts = []
        for (count, curves), sentence in zip(by_labels.items(), sentences, strict=True):
            parts += [f"### {self._labels(count)}", self._table(curves), sentence]
        markdown = "\n\n".join([*parts, self._note()])
        results = {
            "protocol": self._protocol(),
            "weights": ", ".join(self.comparison.trainings.starts),
            "sentence": " ".join(sentences),
            "curves": [self._plain(curve) for curves in by_labels.values() for curve in curves],
        }
        texts = {"table.md": markdown, "scores.csv": self._csv(), "results.json": strict_json(results)}
        folder.mkdir(exist_ok=True)
        write_texts(folder, texts)
        self._plot(by_labels, folder / "curves.png")
        return markdown

    @property
    def _score(self) -> str:
        return "/".join(self.comparison.trainings.task.score)

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

    def _cost(self, curve: Curve, point: Point) -> float:
        """Of a training and of what has made its start, s."""
        return self.before[curve.start] + point.seconds

    def _table(self, curves: Sequence[Curve]) -> str:
        lengths = sorted({point.times for curve in curves for point in curve.points})
        reached = self._goal(curves)
        goal = f"s in all to {self.reference}'s end" + (f" ({reached:.{self._digits}f})" if reached is not None else "")
        headers = ["start", "s before", "learning rate", *(f"{times}x" for times in lengths)]
        rows = [[*self._row(curve, lengths), self._time_to(curve, reached)] for curve in curves]
        return markdown_table([*headers, "end", "at", "s in all", goal], rows)

    def _row(self, curve: Curve, lengths: Sequence[int]) -> list[str]:
        before = "unknown" if curve.start in self.unknown else f"{self.before[curve.start]:,.0f}"
        points = {point.times: point for point in curve.points}
        cells = [self._cell(points.get(times)) for times in lengths]
        if not curve.points:
            return [curve.start, before, NONE, *cells, "not yet", NONE, NONE]
        training = Training(curve.start, curve.labels, self.comparison.seeds[0], 1, curve.rate)
        rate = f"{self.comparison.trainings.learning_rate(training):.3g}"
        end = mean_and_spread(curve.last.scores, self._digits) if curve.is_settled else "still rising"
        at = f"{curve.last.times}x"
        return [curve.start, before, rate, *cells, end, at, f"{self._cost(curve, curve.last):,.0f}"]

    def _cell(self, point: Point | None) -> str:
        return f"{mean_and_spread(point.scores, self._digits)} ({point.seconds:,.0f} s)" if point else NONE

    def _goal(self, curves: Sequence[Curve]) -> float | None:
        """The reference's score at its end."""
        (curve,) = (curve for curve in curves if curve.start == self.reference)
        return curve.last.score if curve.points and not math.isnan(curve.last.score) else None

    def _time_to(self, curve: Curve, score: float | None) -> str:
        """After how many seconds in all the mean score reaches this one, along the logarithm of the seconds."""
        if score is None or not curve.points:
            return NONE
        goodness = self.comparison.goodness
        costs = [self._cost(curve, point) for point in curve.points]
        values = [goodness(point.score) for point in curve.points]
        if values[0] >= goodness(score):
            return f"at most {costs[0]:,.0f}"
        reached = first_reaching(costs, values, goodness(score))
        return f"{reached:,.0f}" if reached else f"not within {costs[-1]:,.0f}"

    def _sentence(self, count: int, curves: Sequence[Curve]) -> str:
        with_labels = f"With {count:,} labelled images"
        if not all(curve.points for curve in curves):
            return f"{with_labels} not all starts have trained yet."
        verdict = self._verdict(curves)
        shown = {curve.start: mean_and_spread(curve.last.scores, self._digits) for curve in curves}
        rising = [curve.start for curve in curves if not curve.is_settled]
        unsettled = f" So far: {', '.join(rising)} still rises." if rising else ""
        best = f"{with_labels} {verdict.best} is best at the end, {self._score} {shown[verdict.best]}"
        if math.isnan(verdict.limit):
            return f"{best}. One seed says nothing of chance.{unsettled}"
        limit = f"{verdict.limit:.{self._digits}f}"
        if not verdict.equal:
            least = min(verdict.gains.values())
            gain = f"better than all others by {least:.{self._digits}f} or more"
            return f"{best}: {gain}, chance alone reaches {limit}.{unsettled}"
        others = ", ".join(f"{name} ({shown[name]})" for name in verdict.equal)
        return f"{best}; equal to it: {others}, as chance alone makes differences up to {limit}.{unsettled}"

    def _verdict(self, curves: Sequence[Curve]) -> Verdict:
        goodness = self.comparison.goodness
        return judge({curve.start: [goodness(score) for score in curve.last.scores] for curve in curves})

    def _plain(self, curve: Curve) -> dict:
        points = [
            {
                "times": point.times,
                "scores": point.scores,
                "held_out": point.held_out,
                "seconds": point.seconds,
                "seconds_in_all": self._cost(curve, point),
            }
            for point in curve.points
        ]
        end = curve.last.times if curve.points else None
        return {"start": curve.start, "labels": curve.labels, "rate": curve.rate, "points": points, "end": end}

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
            f"Learning rates (x1/3, x1, x3 of the recipe's, at 1x) and lengths are chosen on {images}. The end is the "
            f"last length whose mean score there rose by more than {rule.tolerance:g}; {rule.patience} longer did not.",
            "Starts are compared at their ends by Tukey's test over seeds, of two starts the 95 % t interval of their "
            "paired differences: of equal starts, 5 in 100 comparisons call one different.",
        ]
        if self.unknown:
            known = "nothing says what it has cost, so 0 is counted: give --spent NAME=SECONDS"
            lines.append(f"{', '.join(self.unknown)}: {known}.")
        return " ".join(lines)

    def _plot(self, by_labels: Mapping[int, Sequence[Curve]], path: Path) -> None:
        """Score against seconds in all, a line for each start, a dot for each seed; nothing before the first score."""
        shown = {count: [curve for curve in curves if curve.points] for count, curves in by_labels.items()}
        shown = {count: curves for count, curves in shown.items() if curves}
        if not shown:
            return
        with saved_plot(path, len(shown), size=(6, 4)) as axes:
            for axis, (count, curves) in zip(axes, shown.items(), strict=True):
                for number, curve in enumerate(curves):
                    self._draw(axis, curve, f"C{number % 10}")
                axis.set_xscale("log")
                axis.set_title(f"{count:,} labelled images", fontsize=9)
                axis.set(xlabel=f"{self.comparison.trainings.unit} in all", ylabel=self._score)

    def _draw(self, axis: Axes, curve: Curve, color: str) -> None:
        """Means with their band, mean ± standard deviation, and a dot for each seed."""
        costs = [self._cost(curve, point) for point in curve.points]
        means = [point.score for point in curve.points]
        edges = [[p.score + side * deviation(p.scores) for p in curve.points] for side in (-1, 1)]
        axis.plot(costs, means, color=color, marker="o", label=curve.start)
        axis.fill_between(costs, *edges, color=color, alpha=0.2, linewidth=0)
        for cost, point in zip(costs, curve.points, strict=True):
            axis.scatter([cost] * len(point.scores), point.scores, color=color, s=6, alpha=0.6)
