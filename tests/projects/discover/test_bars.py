"""Bars of one colour along the edges of images, in which no object is looked for."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as run_lengths

from projects.Discover.bars import Bars, bars_of
from projects.Discover.discovery import discover
from revisit.data.images.pixel_format import PHOTOGRAPHS


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(60, 200, (height, width, 3)).astype(np.uint8)


@settings(max_examples=30)
@given(sides=st.tuples(*[st.integers(0, 8)] * 4), colour=st.sampled_from([0, 255]), blur=st.integers(0, 8))
def test_bars_around_a_picture_are_found_to_the_pixel(sides, colour, blur):
    bars = Bars(*sides)
    picture = noise(40, 50)
    around = [(bars.top, bars.bottom), (bars.left, bars.right), (0, 0)]
    image = np.pad(picture, around, constant_values=colour)
    shades = np.random.default_rng(1).integers(0, blur + 1, image.shape)  # as JPEG leaves them
    is_bar = np.pad(np.zeros(picture.shape, bool), around, constant_values=True)
    image = np.where(is_bar, np.abs(image - shades), image).astype(np.uint8)
    assert bars_of(image) == bars
    assert np.array_equal(bars.without(image), picture)
    assert np.array_equal(bars.around(np.ones((40, 50), np.uint8)), ~is_bar[..., 0])


def test_the_plain_background_of_an_object_is_no_bar():
    image = np.full((60, 80, 3), 255, np.uint8)
    rows, columns = np.ogrid[:60, :80]
    image[(rows - 30) ** 2 + (columns - 40) ** 2 < 20**2] = 40
    assert bars_of(image) == Bars()


@pytest.mark.parametrize("image", [np.zeros((20, 30, 3), np.uint8), noise(1, 1), noise(3, 200)])
def test_an_image_of_one_colour_or_of_few_pixels_has_no_bars(image):
    assert bars_of(image) == Bars()


def test_what_has_half_of_a_side_is_no_bar():
    picture = noise(20, 30)
    assert bars_of(np.pad(picture, [(19, 0), (0, 0), (0, 0)])) == Bars(top=19)
    assert bars_of(np.pad(picture, [(20, 0), (0, 0), (0, 0)])) == Bars()
    two_colours = np.repeat(np.array([0, 255], np.uint8), 10)[:, None, None] * np.ones((1, 30, 3), np.uint8)
    assert bars_of(two_colours) == Bars()


def test_a_white_frame_inside_of_black_bars_is_none_of_the_picture():
    framed = np.pad(noise(20, 30), [(2, 2), (2, 2), (0, 0)], constant_values=255)
    assert bars_of(np.pad(framed, [(0, 0), (9, 8), (0, 0)])) == Bars(2, 2, 11, 10)


def test_objects_are_found_in_the_picture_and_are_of_the_whole_image(tmp_path: Path):
    rng = np.random.default_rng(0)

    def features(image: np.ndarray) -> list[np.ndarray]:
        """Cells of 4 px: their colours, and noise."""
        cells = cv2.resize(image, (image.shape[1] // 4, image.shape[0] // 4)) / 255 - 0.5
        cells = np.concatenate([cells, rng.normal(0, 0.05, (*cells.shape[:2], 5))], axis=2)
        return [(cells / np.linalg.norm(cells, axis=2, keepdims=True)).astype(np.float32)]

    pictures = noise(96, 96) // 8 + np.array([0, 90, 0], np.uint8)
    pictures[28:60, 40:72] = (200, 0, 60)
    objects = []
    for name, bars in (("bare", Bars()), ("barred", Bars(16, 9, 0, 5))):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "0.png"
        cv2.imwrite(str(path), bars_around(pictures, bars))
        rng = np.random.default_rng(0)
        (image,) = discover([{"file_name": str(path)}], PHOTOGRAPHS, lambda: features, tmp_path / name, 5)
        assert (image["height"], image["width"]) == bars_around(pictures, bars).shape[:2]
        objects.append(image["objects"])
    (x, y, width, height) = objects[0][0]["bbox"]
    assert max(abs(x - 40), abs(y - 28), abs(width - 32), abs(height - 32)) <= 4
    assert len(objects[0]) == len(objects[1])
    for bare, barred in zip(*objects, strict=True):
        assert barred["bbox"] == [bare["bbox"][0], bare["bbox"][1] + 16, *bare["bbox"][2:]]
        masks = [run_lengths.decode(each["segmentation"]) for each in (bare, barred)]
        assert np.array_equal(Bars(16, 9, 0, 5).around(masks[0]), masks[1])


def bars_around(picture: np.ndarray, bars: Bars) -> np.ndarray:
    return np.pad(picture, [(bars.top, bars.bottom), (bars.left, bars.right), (0, 0)])
