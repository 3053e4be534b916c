"""The two ways to cut and resize: one against PIL, the other against its definition in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from revisit.data.resize import crop_and_reduce, crop_and_resize


def grey_levels_from_pil(view, image, box):
    """Largest difference to PIL's crop followed by its bilinear resize, torchvision's RandomResizedCrop."""
    size = (view.shape[1], view.shape[0])
    reference = Image.fromarray(image).crop(tuple(box.tolist())).resize(size, Image.Resampling.BILINEAR)
    return np.abs(np.asarray(reference, dtype=int) - view).max()


@st.composite
def image_and_box(draw):
    height, width = draw(st.integers(1, 120)), draw(st.integers(1, 120))
    x0, y0 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    box = np.array([x0, y0, draw(st.integers(x0 + 1, width)), draw(st.integers(y0 + 1, height))])
    y, x = np.mgrid[0:height, 0:width]
    smooth = np.stack([2 * y, 2 * x, y + x], axis=-1).astype(np.uint8)
    noise = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 256, smooth.shape, dtype=np.uint8)
    return draw(st.sampled_from([smooth, noise])), box


@given(image_and_box(), st.integers(1, 150))
def test_resizing_is_pils_within_a_grey_level(picture_and_box, size):
    image, box = picture_and_box
    view = crop_and_resize(image, box, size)
    assert view.shape == (size, size, 3) and view.dtype == np.uint8 and view.flags["C_CONTIGUOUS"]
    assert grey_levels_from_pil(view, image, box) <= 1


def reduced(image, box, size):
    """Means of whole blocks, as many pixels each as the scale rounds to, then bilinear: one pixel at a time."""
    x0, y0, x1, y1 = (int(value) for value in box)
    pixels = image.astype(float)
    for axis, (low, high) in enumerate([(y0, y1), (x0, x1)]):
        block = max(1, int((high - low) / size + 0.5))
        count = (high - low) // block
        start = low + (high - low - count * block) // 2
        blocks = [pixels.take(range(start + n * block, start + (n + 1) * block), axis).mean(axis) for n in range(count)]
        pixels = np.stack(blocks, axis)
    for axis in (0, 1):
        count = pixels.shape[axis]
        lines = []
        for n in range(size):
            place = min(max((n + 0.5) * count / size - 0.5, 0), count - 1)
            low = int(place)
            high = min(low + 1, count - 1)
            lines.append((1 - place + low) * pixels.take(low, axis) + (place - low) * pixels.take(high, axis))
        pixels = np.stack(lines, axis)
    return pixels


@given(image_and_box(), st.integers(1, 60))
def test_reducing_is_block_means_and_bilinear_but_for_two_roundings(picture_and_box, size):
    image, box = picture_and_box
    view = crop_and_reduce(image, box, size)
    assert view.shape == (size, size, 3) and view.dtype == np.uint8 and view.flags["C_CONTIGUOUS"]
    assert np.abs(view - reduced(image, box, size)).max() <= 1.5


@pytest.mark.parametrize("side", [40, 64, 96, 130, 200, 333])
def test_reducing_keeps_a_photographs_brightness_and_layout(make_picture, side):
    image = make_picture(360, 360)
    box = np.array([11, 7, 11 + side, 7 + side])
    fast, exact = crop_and_reduce(image, box, 64).astype(float), crop_and_resize(image, box, 64).astype(float)
    assert np.abs(fast.mean((0, 1)) - exact.mean((0, 1))).max() < 2
    assert np.abs(fast - exact).mean() < 4


def test_the_result_can_be_written_in_place(make_picture):
    image, box = make_picture(50, 60), np.array([3, 2, 50, 44])
    room = np.zeros((4, 16, 16, 3), np.uint8)
    crop_and_reduce(image, box, 16, room[2])
    assert np.array_equal(room[2], crop_and_reduce(image, box, 16)) and not room[[0, 1, 3]].any()
