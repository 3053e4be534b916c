"""Looks of a batch at once are the looks of its views one by one."""

import numpy as np
import pytest
import torch

from revisit.data.augmentation import BRIGHTNESS, CONTRAST, HUE, SATURATION, StandardLook, draw_look
from revisit.data.augmentation_on_arrays import apply_look
from revisit.data.augmentation_on_device import apply_looks, record_of

SIZE = 40


@pytest.fixture
def images(make_picture):
    noise = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    return [noise, noise // 8 + 150, np.zeros_like(noise), *(make_picture(SIZE, SIZE, seed) for seed in range(5))]


def look(**changes):
    return StandardLook(**{"jitter": (), "grey": False, "blur_sigma": 0.0, "flip": False, **changes})


def together(images, looks):
    """(M, S, S, 3) arrays."""
    batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    before = batch.clone()
    result = apply_looks(batch, np.stack([record_of(each, len(images[0])) for each in looks]))
    assert torch.equal(batch, before) and result.dtype == torch.uint8
    return result.permute(0, 2, 3, 1).numpy().astype(int)


@pytest.mark.parametrize(
    "single",
    [
        *(
            {"jitter": ((operation, factor),)}
            for operation in (BRIGHTNESS, CONTRAST, SATURATION)
            for factor in (0.6, 1.4)
        ),
        *({"jitter": ((HUE, turns),)} for turns in (-0.1, 0.03, 0.1)),
        {"grey": True},
        {"flip": True},
        *({"blur_sigma": sigma} for sigma in (0.1, 0.5, 1.0, 2.0)),
        {},
    ],
    ids=str,
)
def test_an_operation_agrees_within_two_grey_levels(images, single):
    for result, image in zip(together(images, [look(**single)] * len(images)), images, strict=True):
        assert np.abs(result - apply_look(image, look(**single))).max() <= 2


def test_every_view_of_a_batch_gets_its_own_look(images):
    rng = np.random.default_rng(1)
    images = images * 40
    looks = [draw_look("standard_or_autoaugment", rng) for _ in images]
    results = together(images, looks)
    # Several operations round and cut off more than once: close on average, and never another look.
    differences = [
        np.abs(result - apply_look(image, each)).mean()
        for result, image, each in zip(results, images, looks, strict=True)
    ]
    assert np.median(differences) < 1 and np.quantile(differences, 0.95) < 2


@pytest.mark.parametrize("size", [1, 2, 5])
def test_tiny_views_are_blurred_by_their_mirrored_selves(size):
    image = np.random.default_rng(size).integers(0, 256, (size, size, 3), dtype=np.uint8)
    blurred = look(blur_sigma=1.3)
    assert np.abs(together([image], [blurred])[0] - apply_look(image, blurred)).max() <= 2
