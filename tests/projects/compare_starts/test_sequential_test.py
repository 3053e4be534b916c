"""The test behind a budget's sentence: by hand, and by simulation of the looks that a budget takes."""

import math
import os

import numpy as np
import pytest
from scipy.stats import t

from projects.CompareStarts.sequential_test import ALPHA, POWER, SequentialTest, seeds_to_settle, standard_error

DRAWS = int(os.environ.get("FUZZ_CASES", 2000))


def calls_different(differences: np.ndarray, first: int) -> bool:
    """As a budget looks: after the seeds that were asked for, then after each further one."""
    test, most = SequentialTest(), len(differences)
    return any(test.look(list(differences[:count]), most) for count in range(first, most + 1))


def share_called_different(first: int, most: int, mean: float) -> float:
    rng = np.random.default_rng([first, most])
    return np.mean([calls_different(rng.normal(mean, 1, most), first) for _ in range(DRAWS)])


@pytest.mark.parametrize(("first", "most"), [(2, 2), (2, 10), (3, 3), (3, 6), (3, 10), (5, 5), (5, 20)])
def test_equal_starts_are_called_different_in_at_most_five_percent(first, most):
    sampling_error = math.sqrt(ALPHA * (1 - ALPHA) / DRAWS)
    assert share_called_different(first, most, mean=0.0) <= ALPHA + 3 * sampling_error


@pytest.mark.parametrize(("first", "most"), [(2, 2), (2, 4), (3, 3), (5, 10)])
def test_equal_starts_of_few_different_scores_are_called_different_in_at_most_five_percent(first, most):
    rng = np.random.default_rng([first, most])
    scores = np.round(rng.normal(size=(DRAWS, 2, most))) * 0.1
    called = np.mean([calls_different(one - other, first) for one, other in scores])
    assert called <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / DRAWS)


def test_unequal_starts_are_found_more_often_with_more_seeds():
    few, many = share_called_different(3, 3, mean=2.0), share_called_different(3, 10, mean=2.0)
    assert few < 0.5 < 0.9 < many


def test_one_look_is_students_paired_test():
    differences = [1.0, 2.0, 4.5]
    test = SequentialTest()
    test.look(differences, most=3)
    error = np.std(differences, ddof=1) / math.sqrt(3)
    assert test.limit(differences) == pytest.approx(4.552 * error, abs=1e-2)  # t of 2 degrees of freedom


def test_looks_share_the_error_by_their_seeds():
    test, spent = SequentialTest(), []
    for count in range(3, 11):
        differences = list(np.arange(count) - 0.3)
        test.look(differences, most=10)
        spent.append(2 * t.sf(test.limit(differences) / standard_error(differences), count - 1))
    assert spent == pytest.approx([0.3 * ALPHA] + [0.1 * ALPHA] * 7)


def test_a_look_after_more_time_was_granted_spends_nothing_twice():
    test = SequentialTest()
    test.look([1.0, 2.0, 3.0], most=3)
    assert not test.look([1.0, 2.0, 3.0, 2.0], most=8)
    assert test.detectable([1.0, 2.0, 3.0, 2.0]) == math.inf


def test_a_detectable_difference_is_found_as_often_as_said():
    test, spread = SequentialTest(), [-1.0, 1.0, -1.0, 1.0, 0.0]
    test.look(spread, most=5)
    mean = test.detectable(spread) / np.std(spread, ddof=1)
    rng = np.random.default_rng(0)
    found = np.mean([SequentialTest().look(list(row), 5) for row in rng.normal(mean, 1, (DRAWS, 5))])
    assert found == pytest.approx(POWER, abs=4 * math.sqrt(POWER * (1 - POWER) / DRAWS))


def test_seeds_that_settle_a_difference_are_the_fewest():
    differences = [1.0, 3.0, 2.0, -1.0]
    total = seeds_to_settle(differences)
    ratio = np.mean(differences) / np.std(differences, ddof=1)

    def settles(count: int) -> bool:
        return ratio * math.sqrt(count) > t.isf(ALPHA * (count - 4) / count / 2, count - 1)

    assert settles(total) and not any(map(settles, range(5, total)))
    assert seeds_to_settle([1.0, -1.0, 1.0, -0.99]) is None


def test_what_earlier_looks_have_spent_stays_spent_where_more_time_is_granted():
    test = SequentialTest()
    test.look([1.0, 2.0, 3.0], most=3)
    for count in range(4, 9):
        differences = [1000.0 + number for number in range(count)]
        assert not test.look(differences, most=8) and test.limit(differences) == math.inf
