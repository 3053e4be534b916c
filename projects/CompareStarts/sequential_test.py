"""Do two starts differ, where one looks again after every seed? A paired t-test that spends its error over the looks.

Two standard errors, looked at after every seed, would call two equal starts different in 19 to 32 of 100 comparisons
of 3 to 10 seeds. Here each look has a part of ALPHA, and all parts together are at most ALPHA (Bonferroni). So equal
starts are called different in at most 5 of 100. The parts follow the share of the seeds for which there is time, a
linear spending function (Lan and DeMets, Biometrika 1983).
"""

import math
import statistics
from collections.abc import Sequence
from functools import cache

from scipy.optimize import brentq
from scipy.stats import nct, t

ALPHA = 0.045  # probability that equal starts are called different, over all looks together: at most 5 %, with a margin
POWER = 0.8
MOST_SEEDS = 100  # beyond which nothing is predicted
ROUNDING = 1e-9  # of differences, as a share


class SequentialTest:
    """Looks at the differences of two starts, a difference for each seed, as often as one likes."""

    def __init__(self) -> None:
        self._share = 0.0  # of ALPHA that earlier looks have spent
        self._alpha = 0.0  # of the last look

    def look(self, differences: Sequence[float], most: int) -> bool:
        """Whether the mean difference is more than chance.

        Args:
            differences: score of one start minus that of the other, a number for each seed, at least two.
            most: seeds for which there is time in all, these included.
        """
        share = len(differences) / most
        self._alpha = ALPHA * max(0.0, share - self._share)
        self._share = max(self._share, share)
        return abs(statistics.fmean(differences)) > self.limit(differences)

    def limit(self, differences: Sequence[float]) -> float:
        """The mean difference up to which the last look calls it chance, in the unit of the score."""
        return critical_value(self._alpha, len(differences)) * standard_error(differences)

    def detectable(self, differences: Sequence[float]) -> float:
        """The true difference that the last look would find in POWER of all cases, with a spread such as this one."""
        count = len(differences)
        critical = critical_value(self._alpha, count)
        if math.isinf(critical):
            return math.inf
        standardised = brentq(lambda mean: nct.sf(critical, count - 1, mean) - POWER, 0, 10 * critical)
        return standardised * standard_error(differences)


@cache
def critical_value(alpha: float, count: int) -> float:
    """Two-sided, of the mean of ``count`` differences in standard errors; infinite for an ``alpha`` of 0."""
    return float(t.isf(alpha / 2, count - 1))


def standard_error(differences: Sequence[float]) -> float:
    """Of the mean of at least two differences; infinite where all are the same, as those of coarse scores often are:
    they show no chance to measure them by."""
    spread = statistics.stdev(differences)
    if spread <= ROUNDING * abs(statistics.fmean(differences)):
        return math.inf
    return spread / math.sqrt(len(differences))


def seeds_to_settle(differences: Sequence[float]) -> int | None:
    """How many seeds in all would call this mean difference more than chance, by one look after the last of them.

    None: more than MOST_SEEDS.
    """
    count = len(differences)
    mean = abs(statistics.fmean(differences))
    spread = standard_error(differences) * math.sqrt(count)
    for total in range(count + 1, MOST_SEEDS + 1):
        alpha = ALPHA * (total - count) / total
        if mean > critical_value(alpha, total) * spread / math.sqrt(total):
            return total
    return None
