"""When is a start's score flat, which start is then the best, and does it differ from the others by more than chance?

Lengths are 1, 3, 10, 30 ... times the recipe's. The end is the last of them whose score on held-out images rose by
more than a tolerance; it is settled once so many longer ones have not risen. At their ends the starts are compared by
Tukey's test on their scores by seeds (randomised blocks): of two starts this is the t interval of 95 % of the paired
differences. So equal starts are called different in 5 of 100 comparisons, however many starts there are.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.stats import norm, studentized_range

from projects.CompareStarts.sequential_test import ROUNDING

ALPHA = 0.05  # probability that one of several equal starts is called different
RATES = (1.0, 1 / 3, 3.0)  # times the recipe's; of equal scores the first one is taken
ALWAYS = 10  # times the recipe's length: so long every start is trained


class Rule(NamedTuple):
    """When a score is flat, the same for every start.

    ``tolerance`` is in the unit of the score, ``patience`` a number of lengths, ``longest`` in recipe's lengths.
    """

    tolerance: float
    patience: int = 1
    longest: int = 100

    def end(self, goodness: Sequence[float]) -> int:
        """The index of the last length that rose, of scores of which higher ones are better, shortest length first."""
        end = 0
        for number, value in enumerate(goodness):
            if value > goodness[end] + self.tolerance:
                end = number
        return end

    def is_flat(self, goodness: Sequence[float]) -> bool:
        """Whether as many longer ones have not risen as it takes patience."""
        waited = len(goodness) - 1 - self.end(goodness)
        return waited >= self.patience

    def lengths(self) -> list[int]:
        """All lengths up to the longest: 1, 3, 10, 30, 100 ..."""
        lengths = []
        power = 1
        while power <= self.longest:
            lengths += [power, 3 * power]
            power *= 10
        return [times for times in lengths if times <= self.longest]

    def first_lengths(self) -> list[int]:
        """Those that every start is trained for."""
        return [times for times in self.lengths() if times <= ALWAYS]

    def next_length(self, goodness: Sequence[float]) -> int | None:
        """The length after so many scores; None where there is none, or the score is flat and all first lengths are."""
        following = self.lengths()[len(goodness) :]
        has_first = len(goodness) >= len(self.first_lengths())
        if not following or (has_first and self.is_flat(goodness)):
            return None
        return following[0]


class Verdict(NamedTuple):
    """``best`` has the highest ``mean``; ``gains`` are this less the means of the others. A gain up to ``limit`` is
    chance; NaN, of a single seed, and infinite, of the same differences with every seed: nothing says so."""

    best: str
    mean: float
    gains: dict[str, float]
    limit: float

    @property
    def equal(self) -> list[str]:
        """Starts that are not worse than the best by more than chance."""
        return [name for name, gain in self.gains.items() if math.isfinite(gain) and gain <= self.limit]


def compare_ends(goodness: Mapping[str, Sequence[float]]) -> Verdict:
    """Compare two or more starts.

    Args:
        goodness: by start a number for each seed, the same seeds in the same order; higher is better. A start with a
            score that is undefined, -inf, is worse than others by more than chance.
    """
    means = {name: statistics.fmean(values) for name, values in goodness.items()}
    best = max(means, key=means.get)
    gains = {}
    for name, mean in means.items():
        if name != best:
            gains[name] = means[best] - mean
    defined = [row for row in goodness.values() if all(map(math.isfinite, row))]
    limit = tukey_difference(defined) if len(defined) > 1 else 0.0
    return Verdict(best, means[best], gains, limit)


def tukey_difference(rows: Sequence[Sequence[float]]) -> float:
    """The largest difference of two means of K rows over n seeds that equal starts have in 95 % of all cases.

    q s / sqrt(n), q the quantile of the studentised range of K means with (K - 1) (n - 1) degrees of freedom, s the
    root of the mean square of what start and seed do not explain. NaN for a single seed; infinite where starts differ
    alike with every seed, which shows no chance to measure them by.
    """
    count = len(rows)
    seeds = len(rows[0])
    freedom = (count - 1) * (seeds - 1)
    if not freedom:
        return math.nan
    table = np.array(rows)
    of_starts = table.mean(axis=1, keepdims=True)
    of_seeds = table.mean(axis=0, keepdims=True)
    residuals = table - of_starts - of_seeds + table.mean()
    spread = math.sqrt((residuals**2).sum() / freedom)
    if spread < ROUNDING * np.ptp(of_starts):
        return math.inf
    return _quantile(count, freedom) * spread / math.sqrt(seeds)


def overlap_factor(count: int, images: int) -> float:
    """How much wider the intervals of ``count`` starts have to be, each 95 % of the bootstrap over so many images, for
    those of equal starts to overlap with one another in 95 % of all cases; at least 1.

    The ends of two overlap up to 2 x 1.96 standard errors; means of equal starts differ by up to q of the studentised
    range. A bootstrap's standard error is too small by sqrt(1 - 1 / images).
    """
    wanted = _quantile(count, images - 1) / math.sqrt(1 - 1 / images)
    return max(1.0, wanted / (2 * norm.ppf(1 - ALPHA / 2)))


@cache
def _quantile(count: int, freedom: int) -> float:
    return float(studentized_range.ppf(1 - ALPHA, count, freedom))
