"""How many labelled images a start saves: interpolated, with its uncertainty, never extrapolated."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_rel

from projects.CompareStarts.flatness import ALPHA
from projects.CompareStarts.label_curves import (
    BETTER,
    NO_DIFFERENCE,
    WORSE,
    LabelCurve,
    equivalences,
    first_reaching,
    sentence,
    worth,
)

COUNTS = (50, 200, 800, 2000)
DRAWS = 1000


def curve(start, *means, deviation=0.01):
    """Scores of three seeds with these means, and a band of this half width."""
    scores = ([mean - deviation, mean, mean + deviation] for mean in means)
    return LabelCurve(start, dict(zip(COUNTS, scores, strict=True)))


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
    found = equivalences(curve("moco", 33.5, 40.0, 41.0, 42.0, deviation=0.9), RANDOM)
    assert all(each.verdict == BETTER for each in found)
    assert found[0].far is None and found[1][2:] == (None, None, None)
    text = sentence("moco", "random weights", found[1:], seeds=3)
    assert text == "With moco 200 labelled images do more than 2,000 do with random weights, the most measured."


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("counts", [1, 4])
@pytest.mark.parametrize("step", [0.0, 1.0], ids=["any score", "few different scores"])
def test_of_equal_starts_at_most_five_percent_of_sentences_name_a_difference(seeds, counts, step):
    """A seed's images are the same for both starts, as are those of fewer labels among the more."""
    rng = np.random.default_rng([seeds, counts])

    def drawn(of_seeds):
        scores = of_seeds + rng.normal(size=(counts, seeds))
        return np.round(scores / step) * step if step else scores

    named = 0
    for _ in range(DRAWS):
        of_seeds = rng.normal(size=seeds) + 10 * np.arange(counts)[:, None]
        one, other = (
            LabelCurve(name, dict(zip(COUNTS[:counts], drawn(of_seeds).tolist(), strict=True))) for name in "ab"
        )
        named += not sentence("a", "b", equivalences(one, other), seeds=seeds).startswith("No difference")
    assert named / DRAWS <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / DRAWS)


def test_differences_are_those_of_the_paired_t_test_with_holms_correction():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(40):
        scores = rng.normal(size=(2, 4, 5)) + np.array([0.0, 1.5])[:, None, None]
        one, other = (LabelCurve("", dict(zip(COUNTS, each.tolist(), strict=True))) for each in scores)
        chances = [ttest_rel(*pair).pvalue for pair in zip(*scores, strict=True)]
        differs = [False] * 4
        for rank, place in enumerate(np.argsort(chances)):
            if chances[place] > ALPHA / (4 - rank):
                break
            differs[place] = True
        cases = equivalences(other, one)
        assert [each.verdict != NO_DIFFERENCE for each in cases] == differs
        found += differs
    assert 20 < sum(found) < 140


@pytest.mark.parametrize(
    ("mean", "verdict"), [(26.0, BETTER), (24.0, NO_DIFFERENCE), (16.0, NO_DIFFERENCE), (14.0, WORSE)]
)
def test_differences_of_chance_are_none(mean, verdict):
    found = equivalences(curve("moco", 10.0, mean, 30.0, 34.0, deviation=2.0), RANDOM)  # a standard error of 0.58
    assert [each.verdict for each in found] == [NO_DIFFERENCE, verdict, NO_DIFFERENCE, NO_DIFFERENCE]
    text = sentence("moco", "random weights", found, seeds=3)
    assert text.startswith("No difference") == (verdict == NO_DIFFERENCE)


def test_where_bands_overlap_the_worth_begins_at_the_labels_themselves():
    of_seeds = np.array([-6.0, 0.5, 5.5])  # some have images from which all learn more
    scores = {n: mean + of_seeds for n, mean in zip(COUNTS, (12, 22, 32, 42), strict=True)}
    other = LabelCurve("", {n: list(values) for n, values in scores.items()})
    better = LabelCurve("", {n: list(values + np.array([2.9, 3.0, 3.1])) for n, values in scores.items()})
    at_200 = equivalences(better, other)[1]
    assert at_200.verdict == BETTER and at_200.near == 200 and at_200.same == pytest.approx(200 * 4**0.3)
    at_2000 = equivalences(better, other)[3]
    assert worth(at_2000, "b", COUNTS) == "2,000 labelled images do more than 2,000 do with b, the most measured"


def test_the_same_difference_with_every_seed_says_nothing_of_chance():
    found = equivalences(curve("moco", 10.3, 20.3, 30.3, 34.3, deviation=0.7), curve("", 10, 20, 30, 34, deviation=0.7))
    assert {each.verdict for each in found} == {NO_DIFFERENCE}


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
    dips = curve("random weights", 30.0, 10.0, 20.0, 40.0, deviation=0.0)
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
    part = LabelCurve("moco", {200: [30.0, 31.0, 30.5]})
    assert [each.labels for each in equivalences(part, RANDOM)] == [200]
    text = sentence("moco", "random weights", equivalences(LabelCurve("moco", {}), RANDOM), seeds=3)
    assert text == "moco and random weights cannot be compared yet: no number of labels is finished for both."
