"""What a comparison until scores are flat says: tables, a plot of scores against costs, sentences, results.json."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from projects.CompareStarts.flatness import compare_ends
from projects.CompareStarts.trainings import Training, Trainings
from projects.CompareStarts.until_flat import Curve, UntilFlat, training_of
from projects.CompareStarts.until_flat_rows import Row, score_at_end
from projects.CompareStarts.write_comparison import draw_band, write_texts
from projects.Paper.result_table import NONE
from projects.Pictures.curves import saved_plot
from revisit.files import strict_json
from revisit.markdown import csv_table, deviation, markdown_table, mean_and_spread


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
        parts = []
        sentences = []
        for count, rows in by_labels.items():
            sentences.append(self._sentence(count, rows))
            parts += [self._title(count), self._table(rows), sentences[-1]]
        markdown = "\n\n".join([*parts, self._note()])
        results = {
            "protocol": self._protocol(),
            "weights": ", ".join(self.before),
            "sentence": " ".join(sentences),
            "seconds_before": dict(self.before),
            "curves": list(map(curve_as_json, curves)),
        }
        folder.mkdir(exist_ok=True)
        write_texts(
            folder,
            {
                "table.md": markdown,
                "scores.csv": self._csv(),
                "results.json": strict_json(results),
            },
        )
        self._plot(by_labels, folder / "curves.png")
        return markdown

    @property
    def _trainings(self) -> Trainings:
        return self.comparison.trainings

    @property
    def _score(self) -> str:
        return self._trainings.task.score_name

    @property
    def _digits(self) -> int:
        return 3 if self._trainings.task.sign < 0 else 1

    def _shown(self, scores: Sequence[float]) -> str:
        return mean_and_spread(scores, self._digits)

    def _rows(self, count: int, curves: Sequence[Curve]) -> list[Row]:
        rows = []
        for start, seconds in self.before.items():
            of_start = [curve for curve in curves if curve[:2] == (start, count)]
            rows.append(Row(start, of_start, seconds))
        return rows

    def _title(self, count: int) -> str:
        title = f"### {count:,} labelled images"
        learned = self._trainings.learned(count)
        if learned == count:
            return title
        return f"{title}: {learned:,} to learn from, {count - learned:,} held out"

    def _protocol(self) -> str:
        task = self._trainings.task
        better = ", lower is better" if task.sign < 0 else ""
        seeds = ", ".join(map(str, self.comparison.seeds))
        return (
            f"{self._score}{better}, by finetuning with {task.config} until it is flat, on {task.data}, seeds {seeds}"
        )

    def _table(self, rows: Sequence[Row]) -> str:
        lengths = sorted({times for row in rows for times in row.lengths})
        (reference,) = (row for row in rows if row.start == self.reference)
        goal = score_at_end(reference)
        shown = "" if goal is None else f" ({goal:.{self._digits}f})"
        headers = [
            "start",
            "s before",
            "learning rate",
            *(f"{times}x" for times in lengths),
            "end",
            "at",
            "s in all",
            f"s in all to the end of {self.reference}{shown}",
        ]
        return markdown_table(headers, [self._line(row, lengths, goal) for row in rows])

    def _line(self, row: Row, lengths: Sequence[int], goal: float | None) -> list[str]:
        before = "unknown" if row.start in self.unknown else f"{row.before:,.0f}"
        cells = [self._cell(row, times) for times in lengths]
        if not row.is_begun:
            return [row.start, before, NONE, *cells, "not yet", NONE, NONE, NONE]
        to_goal = NONE if goal is None else row.seconds_to(goal, self._trainings.task.goodness)
        return [
            row.start,
            before,
            of_seeds(f"{self._rate(curve):.3g}" for curve in row.curves),
            *cells,
            self._end(row),
            of_seeds(f"{curve.last.times}x" for curve in row.curves),
            f"{row.end.seconds:,.0f}",
            to_goal,
        ]

    def _rate(self, curve: Curve) -> float:
        return self._trainings.learning_rate(training_of(curve, 1))

    def _end(self, row: Row) -> str:
        if not row.has_ended:
            return "not yet"
        rising = "" if row.is_flat else " (still rising)"
        return f"{self._shown(row.end.scores)}{rising}"

    def _cell(self, row: Row, times: int) -> str:
        """Scores of one length, and the seconds of one training."""
        points = row.of_length(times)
        if not points:
            return NONE
        seconds = sum(point.seconds for point in points) / len(points)
        is_part = len(points) < len(row.curves)
        seeds = f", {len(points)} of {len(row.curves)} seeds" if is_part else ""
        scores = [point.score for point in points]
        return f"{self._shown(scores)} ({seconds:,.0f} s{seeds})"

    def _sentence(self, count: int, rows: Sequence[Row]) -> str:
        labels = f"With {count:,} labelled images"
        if not all(row.is_begun for row in rows):
            return f"{labels} not all starts have trained yet."
        rising = [row.start for row in rows if not row.is_flat]
        unsettled = f" Not yet flat: {', '.join(rising)}." if rising else ""
        return f"{labels} {self._verdict(rows)}.{unsettled}"

    def _verdict(self, rows: Sequence[Row]) -> str:
        """Which start is best at the end, and which are equal to it."""
        goodness = self._trainings.task.goodness
        verdict = compare_ends({row.start: list(map(goodness, row.end.scores)) for row in rows})
        if verdict.mean == -math.inf:
            return f"no start has a {self._score}"
        shown = {row.start: self._shown(row.end.scores) for row in rows}
        best = f"{verdict.best} is best at the end, {self._score} {shown[verdict.best]}"
        if math.isnan(verdict.limit):
            return f"{best}. One seed says nothing of chance"
        limit = f"{verdict.limit:.{self._digits}f}"
        if verdict.equal:
            others = ", ".join(f"{name} ({shown[name]})" for name in verdict.equal)
            why = f"chance alone makes differences up to {limit}"
            if math.isinf(verdict.limit):
                why = "the same differences with every seed say nothing of chance"
            return f"{best}; equal to it: {others}, as {why}"
        gain = min(verdict.gains.values())
        if gain == math.inf:
            return f"{best}: no other start has one"
        return f"{best}: better than all others by {gain:.{self._digits}f} or more, chance alone reaches {limit}"

    def _csv(self) -> str:
        """A line for each training that has ended."""
        headers = [
            "start",
            "labels",
            "seed",
            "times",
            "iterations",
            "learning rate",
            "held out",
            "test",
            "seconds",
            "seconds before",
        ]
        lines = map(self._csv_line, self.comparison.ended())
        return csv_table(headers, lines).rstrip("\n")

    def _csv_line(self, training: Training) -> list[object]:
        known = self._trainings
        return [
            training.start,
            training.labels,
            training.seed,
            training.times,
            known.iterations(training),
            f"{known.learning_rate(training):.3g}",
            known.held_out_score(training),
            known.test_score(training),
            f"{known.seconds(training):.1f}",
            f"{self.before[training.start]:.1f}",
        ]

    def _note(self) -> str:
        rule = self.comparison.rule
        images = (
            self._trainings.held_out.name
            or "a part of the labelled images, the same for all starts, which none learns from"
        )
        lines = [
            f"{self._protocol()}.",
            f"Seconds are {self._trainings.unit} of one training, without its last evaluation; in all: with those "
            "that made the start.",
            f"Each seed chooses its learning rate (x1/3, x1, x3 of the recipe's, at 1x) and its length on {images}.",
            f"The end is the last length whose score there rose by more than {rule.tolerance:g}; {rule.patience} "
            "after it did not, unless the score still rises.",
            "Starts are compared at their ends by Tukey's test over seeds, of two starts the 95 % t interval of their "
            "paired differences: of equal starts, 5 in 100 comparisons call one different.",
        ]
        if self.unknown:
            names = ", ".join(self.unknown)
            lines.append(f"{names}: nothing says what it has cost, so 0 is counted: give --spent NAME=SECONDS.")
        return " ".join(lines)

    def _plot(self, by_labels: Mapping[int, Sequence[Row]], path: Path) -> None:
        """Scores against seconds in all, an axis for each number of labels; nothing before the first score."""
        shown = {}
        for count, rows in by_labels.items():
            if scored := [row for row in rows if score_at_end(row) is not None]:
                shown[count] = scored
        if not shown:
            return
        with saved_plot(path, len(shown), size=(6, 4)) as axes:
            for axis, (count, rows) in zip(axes, shown.items(), strict=True):
                for number, row in enumerate(rows):
                    bands = [(step.seconds, step.mean, deviation(step.scores)) for step in row.steps()]
                    dots = [(row.before + point.seconds, point.score) for point in row.points]
                    draw_band(axis, row.start, bands, dots, number)
                axis.set_xscale("log")
                axis.set_title(f"{count:,} labelled images", fontsize=9)
                axis.set_xlabel(f"{self._trainings.unit} in all")
                axis.set_ylabel(self._score)


def of_seeds(words: Iterable[str]) -> str:
    """What the seeds have, once where it is the same."""
    listed = list(words)
    is_same = len(set(listed)) == 1
    return listed[0] if is_same else ", ".join(listed)


def curve_as_json(curve: Curve) -> dict[str, object]:
    """A curve as JSON has it."""
    points = [point._asdict() for point in curve.points]
    return curve._asdict() | {"points": points}
