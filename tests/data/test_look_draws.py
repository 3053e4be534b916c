"""Which looks are drawn, and how often."""

from collections import Counter

import numpy as np
import pytest

from revisit.config import POLICIES
from revisit.data.augmentation import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    SATURATION,
    AutoAugmentLook,
    StandardLook,
    draw_look,
)
from revisit.data.augmentation_on_arrays import apply_look

COUNT = 6000


@pytest.fixture(scope="module")
def image():
    y, x = np.mgrid[0:40, 0:40]
    picture = np.stack([y * 4 + 40, x * 3 + 20, (x * y) % 256], axis=-1).astype(np.uint8)
    picture[10:20, 10:30] = (200, 40, 90)
    return picture


@pytest.fixture(scope="module")
def drawn():
    """COUNT looks of every policy."""
    rng = np.random.default_rng(3)
    return {policy: [draw_look(policy, rng) for _ in range(COUNT)] for policy in POLICIES}


def assert_frequency(hits, probability, count=COUNT):
    """Within five standard deviations of a binomial."""
    deviation = np.sqrt(count * probability * (1 - probability))
    assert abs(sum(hits) - count * probability) < 5 * deviation


def assert_uniform(values, low, high):
    """In [low, high], with the deciles of the uniform distribution."""
    values = np.asarray(values)
    assert low <= values.min() and values.max() <= high
    deciles = np.quantile((values - low) / (high - low), np.linspace(0.1, 0.9, 9))
    assert np.abs(deciles - np.linspace(0.1, 0.9, 9)).max() < 2.5 / np.sqrt(len(values))  # five deviations at 0.5


def test_standard_frequencies(drawn):
    looks = drawn["standard"]
    assert all(isinstance(look, StandardLook) for look in looks)
    assert_frequency([bool(look.jitter) for look in looks], 0.8)
    assert_frequency([look.grey for look in looks], 0.2)
    assert_frequency([look.blur_sigma > 0 for look in looks], 0.5)
    assert_frequency([look.flip for look in looks], 0.5)


def test_standard_choices_are_independent(drawn):
    choices = np.array([(bool(k.jitter), k.grey, k.blur_sigma > 0, k.flip) for k in drawn["standard"]], dtype=float)
    correlation = np.corrcoef(choices.T) - np.eye(4)
    assert np.abs(correlation).max() < 5 / np.sqrt(COUNT)


def test_standard_strengths(drawn):
    looks = drawn["standard"]
    factors = [dict(look.jitter) for look in looks if look.jitter]
    for operation in (BRIGHTNESS, CONTRAST, SATURATION):
        assert_uniform([each[operation] for each in factors], 0.6, 1.4)
    assert_uniform([each[HUE] for each in factors], -0.1, 0.1)
    assert_uniform([look.blur_sigma for look in looks if look.blur_sigma], 0.1, 2.0)


def test_jitter_runs_every_operation_once_in_any_order(drawn):
    orders = Counter(tuple(op for op, _ in look.jitter) for look in drawn["standard"] if look.jitter)
    assert len(orders) == 24 and all(sorted(order) == [0, 1, 2, 3] for order in orders)
    for count in orders.values():
        assert_frequency([count], 1 / 24, sum(orders.values()))


def test_autoaugment_draws(drawn):
    looks = drawn["autoaugment"]
    assert all(isinstance(look, AutoAugmentLook) for look in looks)
    assert_frequency([look.flip for look in looks], 0.5)
    for policy in range(25):
        assert_frequency([look.policy == policy for look in looks], 1 / 25)
    for place in (0, 1):
        assert_uniform([look.probabilities[place] for look in looks], 0.0, 1.0)
        assert_frequency([look.signs[place] == 0 for look in looks], 0.5)
        assert {look.signs[place] for look in looks} == {0, 1}


def test_a_plus_takes_either_look_half_the_time(drawn):
    looks = drawn["standard_or_autoaugment"]
    standard = [look for look in looks if isinstance(look, StandardLook)]
    automatic = [look for look in looks if isinstance(look, AutoAugmentLook)]
    assert len(standard) + len(automatic) == COUNT
    assert_frequency([len(standard)], 0.5)
    # The choice must not eat into the looks themselves.
    assert_frequency([bool(look.jitter) for look in standard], 0.8, len(standard))
    assert_frequency([look.flip for look in automatic], 0.5, len(automatic))


def test_autoaugment_flips_first(image):
    # The sub-policy Rotate does not commute with a flip.
    rotate = {"policy": 5, "probabilities": (1.0, 0.0), "signs": (1, 1)}
    flipped = apply_look(image, AutoAugmentLook(flip=True, **rotate))
    plain = apply_look(np.ascontiguousarray(image[:, ::-1]), AutoAugmentLook(flip=False, **rotate))
    assert np.array_equal(flipped, plain)
    assert not np.array_equal(flipped, apply_look(image, AutoAugmentLook(flip=False, **rotate))[:, ::-1])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_look_keeps_shape_and_dtype_and_leaves_its_input_alone(image, drawn, policy):
    before = image.copy()
    for look in drawn[policy][:200]:
        result = apply_look(image, look)
        assert result.shape == image.shape and result.dtype == np.uint8
        assert np.array_equal(image, before)


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="randaugment"):
        draw_look("randaugment", np.random.default_rng(0))


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_the_probability_of_grey_is_a_choice(probability):
    rng = np.random.default_rng(0)
    looks = [draw_look("standard", rng, grey_probability=probability) for _ in range(50)]
    assert {look.grey for look in looks} == {probability == 1.0}
