"""Images of any number of channels are resized channel by channel, to the last bit."""

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from revisit.data.views.resampling import RESAMPLERS, resize
from revisit.evaluation.features import center_crop, whole_image
from revisit.network.network_maps import resized

COUNTS = (1, 2, 3, 4, 5, 13, 40)
sides = st.integers(2, 150)


def noise(height: int, width: int, channels: int) -> np.ndarray:
    return np.random.default_rng(height + width).integers(0, 256, (height, width, channels), dtype=np.uint8)


def assert_alone(change, image: np.ndarray) -> None:
    """What ``change`` makes of an image is what it makes of each channel."""
    changed = change(image)
    for place in range(image.shape[2]):
        alone = change(np.ascontiguousarray(image[..., place : place + 1]))
        assert alone.shape[2] == 1 and np.array_equal(changed[..., place], alone[..., 0])
    assert changed.dtype == np.uint8 and changed.shape[2] == image.shape[2]


@pytest.mark.parametrize("resampler", RESAMPLERS.values(), ids=RESAMPLERS)
@pytest.mark.parametrize("channels", COUNTS)
@settings(max_examples=12)
@given(sides, sides, st.integers(1, 100), st.data())
def test_a_crop_of_n_channels_is_that_of_each(resampler, channels, height, width, size, data):
    image = noise(height, width, channels)
    x0, y0 = (data.draw(st.integers(0, side - 1)) for side in (width, height))
    x1, y1 = data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height))
    box = np.array([x0, y0, x1, y1])
    assert_alone(lambda image: resampler(image, box, size), image)


@pytest.mark.parametrize("channels", COUNTS)
@settings(max_examples=12)
@given(sides, sides, st.integers(1, 3))
def test_what_networks_see_of_n_channels_is_what_they_see_of_each(channels, height, width, share):
    image = noise(height, width, channels)
    for change in (
        lambda image: resize(image, (1 + width // share, 1 + height // share), cv2.INTER_AREA),
        lambda image: resize(image, (1 + width // 2, 1 + height // 2), cv2.INTER_LINEAR),
        lambda image: resized(image, 64, 16),
        lambda image: center_crop(image, 32),
        lambda image: whole_image(image, 32),
    ):
        assert_alone(change, image)


@given(sides, sides)
@settings(max_examples=20)
def test_three_channels_are_opencvs(height, width):
    image = noise(height, width, 3)
    for method in (cv2.INTER_AREA, cv2.INTER_LINEAR):
        size = (1 + width // 2, 1 + height // 2)
        assert np.array_equal(resize(image, size, method), cv2.resize(image, size, interpolation=method))
