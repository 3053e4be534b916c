"""When a score is flat, and whether starts differ by more than chance: the rules, on numbers."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_rel

from projects.CompareStarts.flatness import RATES, Rule, compare_ends, overlap_factor, tukey_difference


@pytest.mark.parametrize(
    ("goodness", "end", "is_flat"),
    [
        ([10], 0, False),
        ([10, 10.9], 0, True),  # within the tolerance
        ([10, 10.9, 11.1], 2, False),  # small rises add up
        ([10, 20, 15, 20.5], 1, True),
        ([-math.inf, -math.inf], 0, True),
        ([-math.inf, 3], 1, False),
    ],
)
def test_the_end_is_the_last_length_that_rose(goodness, end, is_flat):
    rule = Rule(1.0)
    assert (rule.end(goodness), rule.is_flat(goodness)) == (end, is_flat)


def test_lengths_triple_while_the_score_rises():
    rule = Rule(1.0, patience=2, longest=300)
    assert rule.lengths() == [1, 3, 10, 30, 100, 300] and rule.first_lengths() == [1, 3, 10]
    assert [rule.next_length([5.0] * count) for count in range(5)] == [1, 3, 10, None, None]
    assert rule.next_length([10, 20, 30]) == 30 and rule.next_length([10, 20, 30, 30]) == 100
    assert rule.next_length([10, 20, 30, 30, 30]) is None
    assert rule.next_length([10, 20, 30, 40, 50, 60]) is None  # the longest
    assert Rule(1.0, longest=5).lengths() == [1, 3]


def test_two_starts_are_compared_by_the_paired_t_test():
    rng = np.random.default_rng(0)
    for seeds in (2, 3, 8):
        one, other = rng.normal(size=(2, seeds))
        limit = ttest_rel(one, other).confidence_interval(0.95)
        assert tukey_difference([one, other]) == pytest.approx((limit.high - limit.low) / 2, rel=1e-3)


def test_more_starts_are_compared_by_tukeys_range():
    """The quantile of 3 means with 4 degrees of freedom, as tables print it: 5.04."""
    rows = np.array([[1.0, 2, 4], [2, 5, 3], [9, 6, 8]])
    residual = rows - rows.mean(0) - rows.mean(1, keepdims=True) + rows.mean()
    assert tukey_difference(rows.tolist()) == pytest.approx(5.04 * math.sqrt((residual**2).sum() / 4 / 3), rel=1e-3)
    verdict = compare_ends({"a": [1, 2, 4], "b": [2, 5, 3], "c": [9, 6, 8]})
    assert verdict.best == "c" and verdict.equal == ["b"]


def test_one_seed_and_undefined_scores_have_no_chance():
    assert math.isnan(compare_ends({"a": [1.0], "b": [2.0]}).limit)
    verdict = compare_ends({"a": [1.0, 2.0], "b": [-math.inf, 2.0]})
    assert verdict.best == "a" and not verdict.equal


def simulated_ends(rng: np.random.Generator, seeds: int, final: float) -> list[float]:
    """Scores at the ends of made-up curves, which rise to ``final`` and whose rates and lengths are chosen by noise."""
    rule, ends = Rule(1.0), []

    def train(times: int, rate: float) -> tuple[float, float]:
        score = final - 40 * times**-0.5 - (rate != 1) + rng.normal(0, 1)
        return score, score + rng.normal(0, 2)  # the second one on a few held-out images

    for _ in range(seeds):
        rates = {rate: train(1, rate) for rate in RATES}
        best = max(RATES, key=lambda rate: rates[rate][1])
        points = [rates[best]]
        while times := rule.next_length([held_out for _, held_out in points]):
            points.append(train(times, best))
        ends.append(points[rule.end([held_out for _, held_out in points])][0])
    return ends


@pytest.mark.parametrize(("starts", "seeds"), [(2, 3), (2, 5), (4, 3)])
def test_equal_starts_are_called_equal_in_95_percent(starts, seeds):
    """Of 1,500 comparisons; their standard error is 0.6 %."""
    rng = np.random.default_rng(0)
    verdicts = [compare_ends({str(n): simulated_ends(rng, seeds, 50) for n in range(starts)}) for _ in range(1500)]
    assert np.mean([len(verdict.equal) == starts - 1 for verdict in verdicts]) > 0.94


@pytest.mark.parametrize("starts", [2, 5])
def test_equal_starts_of_few_different_scores_are_called_equal_in_95_percent(starts):
    """Of two seeds: their differences are often the same, which shows no chance to measure them by."""
    rng = np.random.default_rng(0)
    draws = 1500
    named = 0
    for _ in range(draws):
        scores = np.round(rng.normal(size=(starts, 2))) * 0.1 + 0.3  # whose differences are inexact
        named += len(compare_ends(dict(enumerate(scores.tolist()))).equal) < starts - 1
    assert named / draws < 0.06


def test_the_same_difference_with_every_seed_is_no_difference_and_no_score_at_all_is_one():
    verdict = compare_ends({"a": [0.3, 0.4, 0.6], "b": [0.2, 0.3, 0.5], "c": [math.nan, -math.inf, 0.5]})
    assert verdict.equal == ["b"] and math.isinf(verdict.limit)


@pytest.mark.parametrize("images", [4, 30])
@pytest.mark.parametrize("starts", [2, 10])
def test_intervals_of_equal_starts_overlap_in_95_percent(starts, images):
    """Of the bootstrap over images, whose standard error for means is theirs without the sample's correction."""
    rng = np.random.default_rng([starts, images])
    draws, half = 2000, 1.959964 * overlap_factor(starts, images) / math.sqrt(images)
    values = rng.normal(size=(draws, starts, images))
    means, ends = values.mean(axis=2), half * values.std(axis=2)
    overlaps = (means + ends).min(axis=1) >= (means - ends).max(axis=1)
    assert overlaps.mean() > 0.94


def test_a_start_that_ends_higher_is_called_better():
    rng = np.random.default_rng(0)
    verdicts = [compare_ends({"a": simulated_ends(rng, 5, 50), "b": simulated_ends(rng, 5, 58)}) for _ in range(300)]
    assert np.mean([verdict.best == "b" and not verdict.equal for verdict in verdicts]) > 0.8
