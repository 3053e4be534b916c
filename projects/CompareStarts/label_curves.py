"""Scores against the number of labelled images, and how many of them a start saves against another one."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from scipy.stats import t

from projects.CompareStarts.flatness import ALPHA
from projects.CompareStarts.sequential_test import standard_error
from revisit.markdown import deviation

BETTER = "better"
WORSE = "worse"
NO_DIFFERENCE = "no difference"


@dataclass(frozen=True)
class LabelCurve:
    """A start's scores, one for each seed, by the number of labelled images, fewest first.

    Its band is mean ± standard deviation over the seeds; of a single seed it has no width.
    """

    start: str
    scores: dict[int, list[float]]

    def mean(self, labels: int) -> float:
        return statistics.mean(self.scores[labels])

    def deviation(self, labels: int) -> float:
        return deviation(self.scores[labels])


class Equivalence(NamedTuple):
    """What ``labels`` labelled images of a start are worth, in those of another one.

    ``same`` is where the other's mean reaches the start's mean, ``near`` and ``far`` are where its band first touches
    the start's band, at ``labels`` or beyond, and where it has passed it: the uncertainty. None lies beyond what was
    measured: more labels than the most of a start that is better, fewer than the fewest of one that is worse. Without
    a difference all are None.
    """

    labels: int
    verdict: str  # BETTER | WORSE | NO_DIFFERENCE: no more than chance
    near: float | None = None
    same: float | None = None
    far: float | None = None


def equivalences(curve: LabelCurve, other: LabelCurve, *, lower_is_better: bool = False) -> list[Equivalence]:
    """One for each number of labels that both were measured with.

    What differs is settled by the paired t-test over seeds, of all numbers of labels together (Holm, Scandinavian
    Journal of Statistics 1979): in 95 of 100 comparisons of equal starts none differs. Scores that differ alike with
    every seed show no chance to measure them by, and differ at none. A single seed differs wherever its scores do.
    Between measured points means and edges of bands are straight lines over the logarithm of the number of labels.
    """
    counts = sorted(curve.scores.keys() & other.scores.keys())
    sign = -1 if lower_is_better else 1
    chances = {labels: _chance(curve.scores[labels], other.scores[labels]) for labels in counts}
    differing = _holm(chances)
    return [
        _equivalence(curve, other, labels, counts, sign) if labels in differing else Equivalence(labels, NO_DIFFERENCE)
        for labels in counts
    ]


def _chance(scores: Sequence[float], others: Sequence[float]) -> float:
    """Probability of such a difference of equal starts, or of a larger one; both have the same seeds in one order."""
    differences = [one - other for one, other in zip(scores, others, strict=True)]
    mean = abs(statistics.fmean(differences))
    if len(differences) == 1:
        return float(mean == 0)
    return float(2 * t.sf(mean / standard_error(differences), len(differences) - 1))


def _holm(chances: Mapping[int, float]) -> set[int]:
    """Which are so small that chance alone makes any such set in ALPHA of all cases, at most."""
    differing: set[int] = set()
    for left, labels in zip(range(len(chances), 0, -1), sorted(chances, key=chances.get), strict=True):
        if chances[labels] > ALPHA / left:
            break
        differing.add(labels)
    return differing


def _equivalence(curve: LabelCurve, other: LabelCurve, labels: int, counts: list[int], sign: int) -> Equivalence:
    mean = sign * curve.mean(labels)
    deviation = curve.deviation(labels)

    def edge(of_band: int) -> Callable[[int], float]:
        return lambda count: sign * other.mean(count) + of_band * other.deviation(count)

    if mean > edge(0)(labels):
        verdict = BETTER
        way = 1
        along = [count for count in counts if count >= labels]
    else:
        verdict = WORSE
        way = -1
        along = [count for count in counts[::-1] if count <= labels]
    # Mirrored where the start is worse: then the other one falls to its score towards fewer labels.
    places = (
        first_reaching(along, [way * edge(way * side)(count) for count in along], way * mean - side * deviation)
        for side in (1, 0, -1)
    )
    return Equivalence(labels, verdict, *places)


def first_reaching(counts: Sequence[int], scores: Sequence[float], wanted: float) -> float | None:
    """Where the line through the scores first reaches one; None if it does not.
    A score of -inf, which is undefined, is on no line."""
    if scores[0] >= wanted:
        return counts[0]
    for (first, low), (second, high) in pairwise(zip(counts, scores, strict=True)):
        if high >= wanted:
            if low == -math.inf:
                return second
            share = (wanted - low) / (high - low)
            return math.exp((1 - share) * math.log(first) + share * math.log(second))
    return None


def sentence(start: str, other: str, cases: Sequence[Equivalence], *, seeds: int) -> str:
    """What the start is worth, by the fewest labels that show a difference; then where it is another.

    Of several differences, a gain comes first whose worth lies within what was measured. Nothing is extrapolated.
    """
    if not cases:
        return f"{start} and {other} cannot be compared yet: no number of labels is finished for both."
    if any(case.verdict != NO_DIFFERENCE for case in cases):
        text = _differences(start, other, cases)
    else:
        text = [f"No difference between {start} and {other} at {_listed(cases)} labelled images: no more than chance."]
    if seeds == 1:
        text.append("One seed: nothing says how much of it is chance.")
    return " ".join(text)


def _differences(start: str, other: str, cases: Sequence[Equivalence]) -> list[str]:
    """Of cases some of which differ: the one to show, then the losses that it does not speak of, and where there is
    none."""
    better, worse, same = (
        [case for case in cases if case.verdict == verdict] for verdict in (BETTER, WORSE, NO_DIFFERENCE)
    )
    shown = min(better or worse, key=lambda case: case.same is None)  # the first of those whose worth was measured
    text = [f"With {start} {worth(shown, other, [case.labels for case in cases])}."]
    if better and worse:
        text.append(f"At {_listed(worse)} it is worse than {other}.")
    if same:
        text.append(f"No difference at {_listed(same)}.")
    return text


def worth(case: Equivalence, other: str, measured: Sequence[int]) -> str:
    """In words: ``100 labelled images do what 240 do with OTHER (190 to 310)``."""
    if case.verdict == NO_DIFFERENCE:
        return f"{case.labels:,} labelled images make no difference to {other}"
    more, bound, most, end = (
        ("more", "at least", "most", max(measured))
        if case.verdict == BETTER
        else ("less", "at most", "fewest", min(measured))
    )
    if case.same is None:
        near = f"; {bound} what {_rounded(case.near)} do" if case.near and case.near != case.labels else ""
        return f"{case.labels:,} labelled images do {more} than {end:,} do with {other}, the {most} measured{near}"
    ends = " to ".join(map(_rounded, sorted([case.near, case.far]))) if case.far else f"{bound} {_rounded(case.near)}"
    return f"{case.labels:,} labelled images do what {_rounded(case.same)} do with {other} ({ends})"


def _rounded(labels: float) -> str:
    """To two digits, as far as such an interpolation can be trusted."""
    return f"{float(f'{labels:.2g}'):,.0f}"


def _listed(cases: Sequence[Equivalence]) -> str:
    *first, last = (f"{case.labels:,}" for case in cases)
    return f"{', '.join(first)} and {last}" if first else last
