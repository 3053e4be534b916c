"""Which looks are drawn, and how often; AutoAugment's draws come to torchvision's operations."""

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import AutoAugment, autoaugment

from revisit.config import POLICIES
from revisit.data.augmentation import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    NUM_POLICIES,
    SATURATION,
    AutoAugmentLook,
    StandardLook,
    draw_look,
)
from revisit.data.augmentation_on_device import NAMES

COUNT = 6000


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


def test_standard_choices_have_their_frequencies_and_are_independent(drawn):
    assert all(isinstance(look, StandardLook) for look in drawn["standard"])
    choices = np.array([(bool(k.jitter), k.grey, k.blur_sigma > 0, k.flip) for k in drawn["standard"]], dtype=float)
    for hits, probability in zip(choices.T, (0.8, 0.2, 0.5, 0.5), strict=True):
        assert_frequency(hits, probability)
    assert np.abs(np.corrcoef(choices.T) - np.eye(4)).max() < 5 / np.sqrt(COUNT)


def test_standard_strengths(drawn):
    factors = [dict(look.jitter) for look in drawn["standard"] if look.jitter]
    for operation in (BRIGHTNESS, CONTRAST, SATURATION):
        assert_uniform([each[operation] for each in factors], 0.6, 1.4)
    assert_uniform([each[HUE] for each in factors], -0.1, 0.1)
    assert_uniform([look.blur_sigma for look in drawn["standard"] if look.blur_sigma], 0.1, 2.0)


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


def test_draws_come_to_torchvisions_operations(monkeypatch):
    done = []

    def note(image, name, magnitude, **_):
        done.append((name, pytest.approx(magnitude)))
        return image

    monkeypatch.setattr(autoaugment, "_apply_op", note)
    covered = set()
    with torch.random.fork_rng():
        for seed in range(500):
            done.clear()
            torch.manual_seed(seed)
            AutoAugment()(Image.new("RGB", (40, 40)))
            torch.manual_seed(seed)
            policy, probabilities, signs = AutoAugment.get_params(NUM_POLICIES)
            assert AutoAugmentLook(False, policy, probabilities.tolist(), signs.tolist()).operations(40) == done
            covered.add(policy)
    assert covered == set(range(NUM_POLICIES))
    assert set(NAMES) == set(AutoAugment()._augmentation_space(10, (40, 40)))


def test_a_plus_takes_either_look_half_the_time(drawn):
    looks = drawn["standard_or_autoaugment"]
    standard = [look for look in looks if isinstance(look, StandardLook)]
    automatic = [look for look in looks if isinstance(look, AutoAugmentLook)]
    assert len(standard) + len(automatic) == COUNT
    assert_frequency([len(standard)], 0.5)
    # The choice must not eat into the looks themselves.
    assert_frequency([bool(look.jitter) for look in standard], 0.8, len(standard))
    assert_frequency([look.flip for look in automatic], 0.5, len(automatic))


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="randaugment"):
        draw_look("randaugment", np.random.default_rng(0))


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_the_probability_of_grey_is_a_choice(probability):
    rng = np.random.default_rng(0)
    looks = [draw_look("standard", rng, grey_probability=probability) for _ in range(50)]
    assert {look.grey for look in looks} == {probability == 1.0}
