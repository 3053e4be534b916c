"""What looks do to pixels, against torchvision on PIL images or float64; and which looks are drawn, how often."""

import colorsys
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import tiny_config
from torchvision.transforms import InterpolationMode, autoaugment
from torchvision.transforms import functional as TF
from trees import refused

from revisit.data.views.looks import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    LOOK_REGISTRY,
    POLICIES,
    SATURATION,
    SIGNED,
    AutoAugmentLook,
    StandardLook,
    _magnitudes,
)
from revisit.data.views.operations import COLORS, MOVES, apply_operation
from revisit.keys import check_values

SIZE = 40
NAMES = ("standard", "autoaugment", "standard_or_autoaugment")
SPACE = autoaugment.AutoAugment()._augmentation_space(10, (SIZE, SIZE))
EXACT = {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Posterize", "Solarize", "Invert", "Equalize"}


def pictures():
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    noise = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    smooth = np.stack([y * 4 + 40, x * 3 + 20, (x * y) % 256], axis=-1).astype(np.uint8)
    smooth[10:20, 10:30] = (200, 40, 90)
    grey = np.repeat(smooth[..., :1], 3, axis=-1)
    few = noise // 64 * 40 + 30  # four values
    flat = {name: np.full_like(noise, value) for name, value in (("flat", 77), ("black", 0), ("white", 255))}
    made = {"noise": noise, "smooth": smooth, "pastel": noise // 8 + 150, "grey": grey, "few": few, **flat}
    for picture in made.values():
        picture.setflags(write=False)  # whatever changed its input would fail
    return made


PICTURES = pictures()


def look(**changes):
    return StandardLook(**{"jitter": (), "grey": False, "blur_sigma": 0.0, "flip": False, **changes})


def distance(one, other):
    """Largest difference, in grey levels."""
    return np.abs(np.asarray(one, dtype=float) - np.asarray(other, dtype=float)).max()


def by_torchvision(adjust, factor, image):
    return adjust(Image.fromarray(image), factor)


def turned_hue(turns, image):
    """Hue rotation in float64, one pixel at a time: torchvision, which rounds on the way, is up to 14 levels off."""
    turned = np.empty(image.shape)
    for place in np.ndindex(image.shape[:2]):
        h, s, v = colorsys.rgb_to_hsv(*(image[place] / 255.0))
        turned[place] = colorsys.hsv_to_rgb((h + turns) % 1.0, s, v)
    return 255 * turned


def greyscale(image):
    return Image.fromarray(image).convert("L").convert("RGB")


def gaussian_blur(sigma, image):
    """Separable Gaussian in float64, cut at six sigma, the border mirrored."""
    radius = int(np.ceil(6 * sigma))
    weights = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    padded = np.pad(image.astype(float), ((radius, radius), (radius, radius), (0, 0)), mode="reflect")
    rows = sum(weight * padded[n : n + SIZE] for n, weight in enumerate(weights))
    return sum(weight * rows[:, n : n + SIZE] for n, weight in enumerate(weights))


ADJUST = {BRIGHTNESS: TF.adjust_brightness, CONTRAST: TF.adjust_contrast, SATURATION: TF.adjust_saturation}


@pytest.mark.parametrize(
    ("changes", "reference", "limit"),
    [
        *(
            ({"jitter": ((operation, factor),)}, partial(by_torchvision, adjust, factor), 1)
            for operation, adjust in ADJUST.items()
            for factor in (0.6, 0.83, 1.0, 1.17, 1.4)
        ),
        *(({"jitter": ((HUE, t),)}, partial(turned_hue, t), 1) for t in (-0.1, -0.037, 0.0, 0.03, 0.05, 0.1)),
        *(({"blur_sigma": s}, partial(gaussian_blur, s), 2) for s in (0.1, 0.3, 0.5, 1.0, 1.5, 2.0)),
        ({"grey": True}, greyscale, 1),
        ({"flip": True}, np.fliplr, 0),
        ({}, np.asarray, 0),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_step_is_its_definition_within_grey_levels(changes, reference, limit):
    for name, image in PICTURES.items():
        array = look(**changes).apply(image)
        assert array.dtype == np.uint8 and distance(array, reference(image)) <= limit, name
        assert "grey" not in changes or (array == array[..., :1]).all()


def test_operations_run_in_the_order_of_the_look():
    jitter = ((CONTRAST, 1.4), (HUE, 0.08), (BRIGHTNESS, 0.7), (SATURATION, 1.3))
    rest = {"grey": True, "blur_sigma": 1.2, "flip": True}
    one_by_one = PICTURES["noise"]
    for step in (*({"jitter": (each,)} for each in jitter), *({name: value} for name, value in rest.items())):
        one_by_one = look(**step).apply(one_by_one)
    assert np.array_equal(look(jitter=jitter, **rest).apply(PICTURES["noise"]), one_by_one)
    assert not np.array_equal(look(jitter=jitter[::-1], **rest).apply(PICTURES["noise"]), one_by_one)


@pytest.mark.parametrize("name", [*MOVES, *COLORS])
@pytest.mark.parametrize("picture", PICTURES)
def test_an_operation_of_autoaugment_is_pils(picture, name):
    image = PICTURES[picture]
    levels, signed = SPACE[name]
    for magnitude in {sign * float(level) for level in levels.flatten() for sign in ((1, -1) if signed else (1,))}:
        pil = Image.fromarray(image)
        expected = autoaugment._apply_op(pil, name, magnitude, InterpolationMode.NEAREST, None)
        array = apply_operation(image, name, magnitude)
        assert array.dtype == np.uint8
        assert distance(array, expected) <= (0 if name in EXACT | {"AutoContrast"} else 2), magnitude


def test_autoaugment_flips_first():
    # The sub-policy Rotate does not commute with a flip.
    image, rotate = PICTURES["smooth"], {"policy": 5, "probabilities": (1.0, 0.0), "signs": (1, 1)}
    flipped = AutoAugmentLook(flip=True, **rotate).apply(image)
    plain = AutoAugmentLook(flip=False, **rotate)
    assert np.array_equal(flipped, plain.apply(np.ascontiguousarray(image[:, ::-1])))
    assert not np.array_equal(flipped, plain.apply(image)[:, ::-1])


COUNT = 6000


@pytest.fixture(scope="module")
def drawn():
    """COUNT looks of every policy."""
    rng = np.random.default_rng(3)
    draws = {policy: LOOK_REGISTRY.get(policy)(tiny_config()) for policy in NAMES}
    return {policy: [draw(rng) for _ in range(COUNT)] for policy, draw in draws.items()}


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
            autoaugment.AutoAugment()(Image.new("RGB", (SIZE, SIZE)))
            torch.manual_seed(seed)
            policy, probabilities, signs = autoaugment.AutoAugment.get_params(len(POLICIES))
            assert AutoAugmentLook(False, policy, probabilities.tolist(), signs.tolist()).operations(SIZE) == done
            covered.add(policy)
    assert covered == set(range(len(POLICIES)))


@pytest.mark.parametrize("size", [16, 96, 224])
def test_magnitudes_are_torchvisions_at_any_size(size):
    space = autoaugment.AutoAugment()._augmentation_space(10, (size, size))
    assert {*MOVES, *COLORS} == set(space) and {name for name, (_, signed) in space.items() if signed} == SIGNED
    for name, levels in _magnitudes(size).items():
        assert levels == space[name][0].tolist()


def test_a_plus_takes_either_look_half_the_time(drawn):
    looks = drawn["standard_or_autoaugment"]
    standard = [look for look in looks if isinstance(look, StandardLook)]
    automatic = [look for look in looks if isinstance(look, AutoAugmentLook)]
    assert len(standard) + len(automatic) == COUNT
    assert_frequency([len(standard)], 0.5)
    # The choice must not eat into the looks themselves.
    assert_frequency([bool(look.jitter) for look in standard], 0.8, len(standard))
    assert_frequency([look.flip for look in automatic], 0.5, len(automatic))


def test_the_probabilities_of_grey_and_of_blur_are_the_configs():
    rng = np.random.default_rng(0)
    for key, has in (("GREY", lambda look: look.grey), ("BLUR", lambda look: look.blur_sigma > 0)):
        for probability in (0.0, 1.0):
            draw = LOOK_REGISTRY.get("standard")(tiny_config(f"VIEWS.{key}_PROBABILITY", probability))
            looks = [draw(rng) for _ in range(50)]
            assert {has(look) for look in looks} == {probability == 1.0}
            assert len({(look.grey, look.blur_sigma > 0) for look in looks}) == 2  # the other one stays a choice


def test_an_unknown_look_is_refused():
    refused(
        "VIEWS.POLICY is 'randaugment': expected a name in LOOK_REGISTRY",
        check_values,
        tiny_config("VIEWS.POLICY", "randaugment"),
    )


@pytest.mark.parametrize("policy", ["standard", "autoaugment"])
def test_a_view_shows_the_source_points_of_its_look(policy, monkeypatch):
    """A bright dot of the plain view is where source_points says that it comes from, to the pixel of each move.

    AutoAugment's policy has no two moves in a row, and most of its other operations change what marks the places: here
    each pair of moves.
    """
    pairs = tuple(((first, 0.8, 6), (second, 0.8, 7)) for first in sorted(MOVES) for second in sorted(MOVES))
    monkeypatch.setattr("revisit.data.views.looks.POLICIES", pairs)
    y, x = np.mgrid[0:SIZE, 0:SIZE].astype(np.float64)
    places = np.stack([x, y, np.zeros_like(x)], axis=-1).astype(np.uint8) + 100
    rng, draw = np.random.default_rng(0), LOOK_REGISTRY.get(policy)(tiny_config())
    for _ in range(100):
        look, roundings = draw(rng), 1
        if isinstance(look, StandardLook):
            look = replace(look, jitter=(), grey=False, blur_sigma=0.0)
        else:
            roundings = max(1, len(look.operations(SIZE)))
        shown = look.apply(places).astype(float)
        points = look.source_points(SIZE) @ np.stack([x.ravel() + 0.5, y.ravel() + 0.5, np.ones(SIZE * SIZE)])
        inside = shown[..., 2].ravel() == 100  # not black
        assert np.abs(shown.reshape(-1, 3)[inside, :2] - 100 - (points[:2].T[inside] - 0.5)).max() <= 1.01 * roundings
