"""What the curves of a start with all its seeds come to: means, costs, and the time to a score."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from projects.CompareStarts.label_curves import first_reaching
from projects.CompareStarts.until_flat import Curve, Point


class Step(NamedTuple):
    """Seconds in all and the score of every seed."""

    seconds: float
    scores: list[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)


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
    def end(self) -> Step:
        """Each seed at its own end."""
        return self._step([curve.last for curve in self.curves])

    @property
    def lengths(self) -> list[int]:
        """Times the recipe's length, shortest first."""
        return sorted({point.times for point in self.points})

    @property
    def points(self) -> list[Point]:
        return [point for curve in self.curves for point in curve.points]

    def of_length(self, times: int) -> list[Point]:
        """Of the seeds that have it."""
        return [point for point in self.points if point.times == times]

    def steps(self) -> list[Step]:
        """Of the lengths that all seeds have, and then at the end if that is later."""
        rows = map(self.of_length, self.lengths)
        steps = [self._step(row) for row in rows if len(row) == len(self.curves)]
        is_later = self.end.seconds > steps[-1].seconds
        return [*steps, self.end] if is_later else steps

    def seconds_to(self, score: float, goodness: Callable[[float], float]) -> str:
        """After how many seconds in all the mean score reaches this one, in words.

        It is interpolated over the logarithm of the seconds. ``goodness`` of a better score is higher.
        """
        steps = self.steps()
        costs = [step.seconds for step in steps]
        values = [goodness(step.mean) for step in steps]
        wanted = goodness(score)
        if values[0] >= wanted:
            return f"at most {costs[0]:,.0f}"
        reached = first_reaching(costs, values, wanted)
        return f"{reached:,.0f}" if reached else f"not within {costs[-1]:,.0f}"

    def _step(self, points: Sequence[Point]) -> Step:
        seconds = statistics.fmean(point.seconds for point in points)
        return Step(self.before + seconds, [point.score for point in points])


def score_at_end(row: Row) -> float | None:
    """The mean; None where there is none yet."""
    if not row.is_begun:
        return None
    mean = row.end.mean
    return None if math.isnan(mean) else mean
