"""Finetune every start until its score is flat: whole schedules of growing length, with the best of three rates.

Each seed is an experiment of its own: it draws the images to learn from and those to choose by, and chooses rate and
length by itself. So what chance there is in the choices is in the spread over seeds, by which starts are compared.

The results of the trainings are the only record: what has one is never repeated, and what was interrupted resumes from
its checkpoint. So the same command continues after any interruption.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from projects.CompareStarts.flatness import RATES, Rule
from projects.CompareStarts.trainings import Training, Trainings, has_diverged
from revisit.errors import UserError
from revisit.jobs.commands import Job


class Point(NamedTuple):
    """A training of one length."""

    times: int  # the recipe's length
    score: float  # on the test set
    held_out: float  # on held-out images
    seconds: float


class Curve(NamedTuple):
    """A start's scores with one seed over the length of its trainings, shortest first."""

    start: str
    labels: int
    seed: int
    rate: float = math.nan  # times the recipe's learning rate; NaN: not yet chosen
    points: Sequence[Point] = ()
    end: int = 0  # index of the point from which on the score on held-out images is flat
    is_flat: bool = False  # whether as many longer trainings say so as the rule wants
    has_ended: bool = False  # whether no longer one follows

    @property
    def last(self) -> Point:
        return self.points[self.end]


@dataclass(frozen=True)
class UntilFlat:
    """Which trainings come next, and what those that have ended say.

    Args:
        run: brings jobs to their end, those that are not done.
        report: called after every round.
        parallel: how many trainings run at a time.
    """

    trainings: Trainings
    labels: Sequence[int]
    seeds: Sequence[int]
    rule: Rule
    run: Callable[[list[Job]], None]
    report: Callable[[], None] = lambda: None
    parallel: int = 1

    def claim(self) -> None:
        """Raises UserError where what has ended is of another recipe or of other data."""
        for each in self.search():
            self.trainings.job(each).claim()

    def train(self) -> None:
        """All rounds; those that have ended run nothing."""
        while left := self.next_round():
            self._announce(left)
            self._go([self.trainings.job(each) for each in left])
            self.report()
            self._remove_networks()

    def next_round(self) -> list[Training]:
        """The trainings that come next, without those that have ended; [] at the end.

        First all rates at the recipe's length. Then, at the rate that was best, the lengths that every start has, and
        at last longer ones while the score still rises.
        """
        wanted = [*self.search(), *(each for curve in self.curves() for each in self._longer(curve))]
        return [each for each in wanted if not self.trainings.has_ended(each)]

    def search(self) -> list[Training]:
        """For the best learning rate."""
        return [
            Training(start, count, seed, 1, rate)
            for count, start, rate, seed in product(self.labels, self.trainings.starts, RATES, self.seeds)
        ]

    def curves(self) -> list[Curve]:
        """Of all starts, labels and seeds, as far as they have come."""
        keys = product(self.labels, self.trainings.starts, self.seeds)
        return [self._curve(start, count, seed) for count, start, seed in keys]

    def ended(self) -> list[Training]:
        """All trainings that have scores."""
        every = dict.fromkeys(self.search())
        for curve in self.curves():
            for point in curve.points:
                every[training_of(curve, point.times)] = None
        return [each for each in every if self.trainings.job(each).done]

    def _curve(self, start: str, labels: int, seed: int) -> Curve:
        searched = [Training(start, labels, seed, 1, rate) for rate in RATES]
        if not all(map(self.trainings.has_ended, searched)):
            return Curve(start, labels, seed)

        def held_out(training: Training) -> float:
            return self.trainings.task.goodness(self.trainings.held_out_score(training))

        best = max(searched, key=held_out)  # of equal ones the first, at the recipe's rate
        points = []
        for times in self.rule.lengths():
            training = best._replace(times=times)
            if not self.trainings.has_ended(training):
                break
            score = self.trainings.test_score(training)
            held_out_score = self.trainings.held_out_score(training)
            points.append(Point(times, score, held_out_score, self.trainings.seconds(training)))
        goodness = self._goodness(points)
        ended = self.rule.next_length(goodness) is None
        return Curve(
            start, labels, seed, best.rate, points, self.rule.end(goodness), self.rule.is_flat(goodness), ended
        )

    def _longer(self, curve: Curve) -> list[Training]:
        """Those that the rule wants, as far as is known; none before a rate is chosen."""
        if not curve.points:
            return []
        wanted = set(self.rule.first_lengths())
        following = self.rule.next_length(self._goodness(curve.points))
        if following is not None:
            wanted.add(following)
        return [training_of(curve, times) for times in sorted(wanted)]

    def _goodness(self, points: Sequence[Point]) -> list[float]:
        return [self.trainings.task.goodness(point.held_out) for point in points]

    def _announce(self, left: Sequence[Training]) -> None:
        """What runs next, and how long it takes by what has ended."""
        counts = [self.trainings.iterations(each) for each in left]
        text = f"{len(left)} trainings of {min(counts):,} to {max(counts):,} iterations"
        ended = {each.start: each for each in self.ended()}
        if all(each.start in ended for each in left):
            expected = [self.trainings.expected_seconds(each, ended[each.start]) for each in left]
            text += f", about {sum(expected) / self.parallel / 60:.0f} minutes"
        print(text, flush=True)

    def _remove_networks(self) -> None:
        """All but those of the ends: hundreds of trainings would fill a disk."""
        ends = {curve[:3]: training_of(curve, curve.last.times) for curve in self.curves() if curve.points}
        for each in self.ended():
            self.trainings.remove_networks(each, final=each != ends.get(each[:3], each))

    def _go(self, jobs: list[Job]) -> None:
        """Run jobs to their end. Raises UserError where one fails for another reason than its learning rate."""
        try:
            self.run(jobs)
        except UserError:
            if not all(job.done or has_diverged(job) for job in jobs):
                raise


def training_of(curve: Curve, times: int) -> Training:
    """One at the rate of a curve."""
    return Training(curve.start, curve.labels, curve.seed, times, curve.rate)
