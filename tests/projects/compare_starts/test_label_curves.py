"""How many labelled images a start saves: interpolated, with its uncertainty, never extrapolated."""

import math

import numpy as np
import pytest

from projects.CompareStarts.label_curves import (
    BETTER,
    NO_DIFFERENCE,
    WORSE,
    LabelCurve,
    equivalences,
    first_reaching,
    sentence,
)

COUNTS = (50, 200, 800, 2000)


def curve(start, *means, deviation=0.0):
    """Scores of two seeds with these means, and a band of this half width."""
    half = deviation / math.sqrt(2)
    return LabelCurve(start, {n: [mean - half, mean + half] for n, mean in zip(COUNTS, means, strict=True)})


def place(scores, wanted):
    """Where increasing scores reach one, independently: NumPy's interpolation of the inverse."""
    return float(np.exp(np.interp(wanted, scores, np.log(COUNTS))))


RANDOM = curve("random weights", 10.0, 20.0, 30.0, 34.0, deviation=1.0)


def test_labels_are_interpolated_on_their_logarithm_between_measured_points_mean_and_band():
    better = curve("moco", 23.0, 32.0, 33.0, 34.5, deviation=0.5)
    found = equivalences(better, RANDOM)
    assert [each.verdict for each in found] == [BETTER, BETTER, BETTER, NO_DIFFERENCE]
    means = np.array([10, 20, 30, 34.0])
    expected = place(means + 1, 22.5), place(means, 23.0), place(means - 1, 23.5)
    assert found[0][2:] == pytest.approx(expected)
    expected = place(means + 1, 31.5), place(means, 32.0), place(means - 1, 32.5)
    assert found[1][2:] == pytest.approx(expected)


def test_a_worse_start_is_worth_fewer_labels():
    found = equivalences(curve("moco", 5.0, 15.0, 24.0, 25.0, deviation=0.5), RANDOM)
    assert [each.verdict for each in found] == [WORSE] * 4
    means = np.array([10, 20, 30, 34.0])
    assert found[0][2:] == (None, None, None)
    expected = place(means - 1, 24.5), place(means, 24.0), place(means + 1, 23.5)
    assert found[2][2:] == pytest.approx(expected)
    near, same, far = found[2][2:]
    assert 200 < far < same < near < 800


def test_nothing_is_extrapolated():
    found = equivalences(curve("moco", 33.5, 40.0, 41.0, 42.0, deviation=1.0), RANDOM)
    assert all(each.verdict == BETTER for each in found)
    assert found[0].far is None and found[1][2:] == (None, None, None)
    text = sentence("moco", "random weights", found[1:], seeds=2)
    assert text == "With moco 200 labelled images do more than 2,000 do with random weights, the most measured."


@pytest.mark.parametrize(
    ("mean", "verdict"), [(22.0, BETTER), (21.4, NO_DIFFERENCE), (18.6, NO_DIFFERENCE), (18.0, WORSE)]
)
def test_bands_that_overlap_are_no_difference(mean, verdict):
    found = equivalences(curve("moco", 10.0, mean, 30.0, 34.0, deviation=0.5), RANDOM)
    assert [each.verdict for each in found] == [NO_DIFFERENCE, verdict, NO_DIFFERENCE, NO_DIFFERENCE]
    text = sentence("moco", "random weights", found, seeds=2)
    assert text.startswith("No difference") == (verdict == NO_DIFFERENCE)
    assert ("chance" in text) == (verdict != NO_DIFFERENCE)  # one difference of four


def test_where_lower_is_better_the_same_labels_are_saved():
    better = curve("moco", 23.0, 32.0, 33.0, 34.5, deviation=0.5)
    negative = [
        LabelCurve(c.start, {n: [-v for v in values] for n, values in c.scores.items()}) for c in (better, RANDOM)
    ]
    assert equivalences(*negative, lower_is_better=True) == equivalences(better, RANDOM)


def test_an_undefined_score_is_on_no_line():
    assert first_reaching([10, 100, 1000], [-math.inf, -math.inf, 5.0], 3.0) == 1000
    assert first_reaching([10, 100, 1000], [-math.inf, 1.0, 5.0], 3.0) == pytest.approx(10**2.5)


def test_a_curve_that_dips_is_followed_from_the_compared_number_on():
    dips = curve("random weights", 30.0, 10.0, 20.0, 40.0)
    (_, at_200, *_) = equivalences(curve("moco", 30.0, 15.0, 20.0, 40.0), dips)
    assert at_200.same == pytest.approx(400) and at_200.verdict == BETTER


def test_the_sentence_prefers_a_gain_that_was_measured_and_hides_no_loss():
    found = equivalences(curve("moco", 50.0, 25.0, 30.0, 20.0, deviation=0.1), RANDOM)
    text = sentence("moco", "random weights", found, seeds=3)
    assert text == (
        "With moco 200 labelled images do what 400 do with random weights (340 to 470). "
        "At 2,000 it is worse than random weights. No difference at 800."
    )


@pytest.mark.parametrize("scores", [(23, 32, 33, 35), (10, 20, 30, 34)], ids=["better", "equal"])
def test_one_seed_is_said_to_be_one(scores):
    one, other = (
        LabelCurve("moco", {n: [s] for n, s in zip((1, 2, 3, 4), row, strict=True)})
        for row in (scores, (10, 20, 30, 34))
    )
    text = sentence("moco", "random", equivalences(one, other), seeds=1)
    assert text.startswith("No difference") == (one == other) and "One seed" in text


def test_only_what_is_finished_for_both_is_compared():
    part = LabelCurve("moco", {200: [30.0, 31.0]})
    assert [each.labels for each in equivalences(part, RANDOM)] == [200]
    text = sentence("moco", "random weights", equivalences(LabelCurve("moco", {}), RANDOM), seeds=2)
    assert text == "moco and random weights cannot be compared yet: no number of labels is finished for both."
