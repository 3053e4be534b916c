"""Finetune every start until its score is flat: whole schedules of growing length, with the best of three rates.

The results of the trainings are the only record: what has one is never repeated, and what was interrupted resumes from
its checkpoint. So the same command continues after any interruption.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from projects.CompareStarts.flat import RATES, Rule
from projects.CompareStarts.trainings import Training, Trainings, has_diverged
from projects.PaperTables.jobs import Job
from revisit.errors import UserError
from revisit.evaluation.main_score import direction


class Point(NamedTuple):
    """The trainings of one length."""

    times: int  # the recipe's length
    scores: list[float]  # on the test set, one for each seed
    held_out: float  # the mean score on held-out images
    seconds: float  # of one training, the mean

    @property
    def score(self) -> float:
        return statistics.fmean(self.scores)


class Curve(NamedTuple):
    """A start's scores over the length of its trainings, shortest first, with the learning rate that was chosen."""

    start: str
    labels: int
    rate: float  # times the recipe's; NaN: not yet chosen
    points: list[Point]
    end: int = 0  # index of the point where the score on held-out images is flat
    is_settled: bool = False

    @property
    def last(self) -> Point:
        return self.points[self.end]


class UntilFlat:
    """Which trainings come next, and what those that have ended say.

    Args:
        run: brings jobs to their end, those that are not done.
        report: called after every round.
        parallel: how many trainings run at a time.
    """

    def __init__(
        self,
        trainings: Trainings,
        labels: Sequence[int],
        seeds: Sequence[int],
        rule: Rule,
        *,
        run: Callable[[list[Job]], None],
        report: Callable[[], None] = lambda: None,
        parallel: int = 1,
    ):
        self.trainings, self.labels, self.seeds, self.rule = trainings, labels, seeds, rule
        self._run, self._report, self._parallel = run, report, parallel
        self._sign = direction("/".join(trainings.task.score)) or 1
        self._pairs = [(start, count) for count in labels for start in trainings.starts]

    def claim(self) -> None:
        """Raises UserError where what has ended is of another recipe or of other data."""
        for each in self.search():
            self.trainings.job(each).claim()

    def train(self) -> None:
        """All rounds; those that have ended run nothing."""
        while left := self.next_round():
            self._announce(left)
            self._go([self.trainings.job(each) for each in left])
            self._report()

    def next_round(self) -> list[Training]:
        """The trainings that come next, without those that have ended; [] at the end.

        First all rates at the recipe's length. Then, at the rate that was best, the lengths that every start has, and
        at last longer ones of the starts whose score still rises.
        """
        left = [each for each in self.search() if not self.trainings.has_ended(each)]
        if left:
            return left
        wanted = [each for start, count in self._pairs for each in self._at_chosen_rate(start, count)]
        return [each for each in wanted if not self.trainings.has_ended(each)]

    def search(self) -> list[Training]:
        """For the best learning rate."""
        return [
            Training(start, count, seed, 1, rate)
            for start, count in self._pairs
            for rate in RATES
            for seed in self.seeds
        ]

    def curve(self, start: str, labels: int) -> Curve:
        """As far as all seeds have ended."""
        searched = [Training(start, labels, seed, 1, rate) for rate in RATES for seed in self.seeds]
        if not all(map(self.trainings.has_ended, searched)):
            return Curve(start, labels, math.nan, [])
        rate, points = self._best_rate(start, labels), []
        for times in self.rule.lengths():
            row = self._row(start, labels, times, rate)
            if not all(map(self.trainings.has_ended, row)):
                break
            points.append(self._point(row))
        goodness = self._goodness(points)
        return Curve(start, labels, rate, points, self.rule.end(goodness), self.rule.next_length(goodness) is None)

    def curves(self, labels: int) -> list[Curve]:
        return [self.curve(start, labels) for start in self.trainings.starts]

    def ended(self) -> list[Training]:
        """All that have scores."""
        longer = [
            each
            for start, count in self._pairs
            for curve in [self.curve(start, count)]
            for point in curve.points
            for each in self._row(start, count, point.times, curve.rate)
        ]
        every = dict.fromkeys([*self.search(), *longer])
        return [each for each in every if self.trainings.job(each).done]

    def goodness(self, score: float) -> float:
        """The higher the better; an undefined score is the worst."""
        return -math.inf if math.isnan(score) else self._sign * score

    def _at_chosen_rate(self, start: str, labels: int) -> list[Training]:
        """Those of lengths that the rule wants, as far as is known."""
        curve = self.curve(start, labels)
        following = self.rule.next_length(self._goodness(curve.points))
        wanted = {*self.rule.first_lengths(), *filter(None, [following])}
        return [each for times in sorted(wanted) for each in self._row(start, labels, times, curve.rate)]

    def _best_rate(self, start: str, labels: int) -> float:
        """By the mean over seeds at the recipe's length on held-out images; of equal ones the recipe's."""
        points = {rate: self._point(self._row(start, labels, 1, rate)) for rate in RATES}
        return max(RATES, key=lambda rate: self.goodness(points[rate].held_out))

    def _row(self, start: str, labels: int, times: int, rate: float) -> list[Training]:
        return [Training(start, labels, seed, times, rate) for seed in self.seeds]

    def _point(self, row: Sequence[Training]) -> Point:
        scores = [self.trainings.test_score(each) for each in row]
        held_out = statistics.fmean(self.trainings.held_out_score(each) for each in row)
        seconds = statistics.fmean(self.trainings.seconds(each) for each in row)
        return Point(row[0].times, scores, held_out, seconds)

    def _goodness(self, points: Sequence[Point]) -> list[float]:
        return [self.goodness(point.held_out) for point in points]

    def _announce(self, left: Sequence[Training]) -> None:
        """What runs next, and how long it takes by what has ended."""
        counts = [self.trainings.iterations(each) for each in left]
        ended = [each for each in self.search() if self.trainings.job(each).done]
        text = f"{len(left)} trainings of {min(counts):,} to {max(counts):,} iterations"
        if ended:
            each_takes = statistics.fmean(map(self.trainings.seconds_of_iteration, ended))
            text += f", about {sum(counts) * each_takes / self._parallel / 60:.0f} minutes"
        print(text, flush=True)

    def _go(self, jobs: list[Job]) -> None:
        """Run jobs to their end. Raises UserError where one fails for another reason than its learning rate."""
        try:
            self._run(jobs)
        except UserError:
            if not all(job.done or has_diverged(job) for job in jobs):
                raise
