"""Images that turn, zoom and are squashed, against definitions in float64."""

from functools import partial

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from pixel_records import make_mapper, pixels_of, write_record
from trees import refusal

from projects.Objectives import published_mapper

CHOICE = ("INPUT.RANDOM_SCALE_SAMPLING", "choice")


def test_choices_of_scales_alone_are_chosen(tmp_path):
    record = write_record(tmp_path, np.full((100, 100), 1))
    np.random.seed(0)
    mapper = make_mapper((1.0, 1.2, 1.5), options=CHOICE)
    heights = [mapper(record)["image"].shape[1] for _ in range(200)]
    chosen, counts = np.unique(heights, return_counts=True)
    assert chosen.tolist() == [100, 120, 150] and counts.min() > 40


def turned_by_definition(pixels, angle, zoom, fill, smooth):
    """(H, W, C) in float64, turned clockwise by ``angle`` degrees and enlarged by ``zoom`` around the image's centre.

    Each pixel asks where its centre came from: the four pixels around that place, by their distance, or the nearest
    one. Also how far, px, the place is from the nearest edge of a pixel, where the nearest one changes.
    """
    (height, width), radians = pixels.shape[:2], np.deg2rad(angle)
    y, x = np.mgrid[:height, :width] + 0.5 - np.array([height / 2, width / 2])[:, None, None]
    v = (y * np.cos(radians) - x * np.sin(radians)) / zoom + height / 2
    u = (x * np.cos(radians) + y * np.sin(radians)) / zoom + width / 2
    inside = (v >= 0) & (u >= 0) & (v < height) & (u < width)
    edge = np.minimum(*(np.abs(place - np.round(place)) for place in (v, u)))
    if not smooth:
        rows, columns = (np.clip(np.floor(p), 0, n - 1).astype(int) for p, n in ((v, height), (u, width)))
        return np.where(inside[..., None], pixels[rows, columns], fill), edge
    result = np.zeros(pixels.shape)
    top, left = np.floor(v - 0.5), np.floor(u - 0.5)
    for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        weight = (1 - np.abs(v - 0.5 - row)) * (1 - np.abs(u - 0.5 - column))
        there = (row >= 0) & (column >= 0) & (row < height) & (column < width)
        pixel = pixels[np.clip(row, 0, height - 1).astype(int), np.clip(column, 0, width - 1).astype(int)]
        result += weight[..., None] * np.where(there[..., None], pixel, fill)
    return result, edge


@pytest.mark.parametrize("squash", [True, False])
@pytest.mark.parametrize(("angle", "zoom"), [(5.0, 1.25), (-3.2, 0.75), (0.0, 0.8), (40.0, 1.0)])
def test_images_turn_and_zoom_around_their_centre_as_by_definition(tmp_path, monkeypatch, angle, zoom, squash):
    size, zoom = (30, 44), zoom if squash else 1.0
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    number = np.arange(1, 1 + size[0] * size[1]).reshape(size)
    record = write_record(tmp_path, number % 5, number, image)
    options = ["INPUT.RANDOM_ROTATION", 45.0, "INPUT.SQUASH", size if squash else None]
    mapper = make_mapper((zoom,), options=[*CHOICE, *options])
    monkeypatch.setattr("numpy.random.uniform", lambda low, high: angle if (low, high) == (-45, 45) else 1 / 0)
    sample = mapper(record)
    expected, _ = turned_by_definition(image, angle, zoom, (124, 116, 104), smooth=True)
    assert np.abs(pixels_of(sample) - expected).max() <= 0.51  # the rounding
    expected, margin = turned_by_definition(number[..., None], angle, zoom, 0, smooth=False)
    sure, expected = margin > 1e-3, expected[..., 0]
    assert sure.mean() > 0.5 and (zoom > 1 or (expected == 0).any() or not angle)
    assert np.array_equal(np.rint(sample["depth"].double().numpy() * zoom)[sure], expected[sure])
    assert np.array_equal(sample["sem_seg"][sure], np.where(expected == 0, 255, expected % 5)[sure])


def cubic(pixels, v, u, is_black_outside):
    """(H, W, C) in float64 at places (v, u) that count from the middle of the first pixel: Keys's filter of 4 x 4
    pixels with a = -0.75, which is OpenCV's; uint8 as OpenCV rounds."""
    height, width = pixels.shape[:2]

    def weight(x):
        x, a = np.abs(x), -0.75
        near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x < 1, near, np.where(x < 2, far, 0))[..., None]

    result = np.zeros((*v.shape, pixels.shape[2]))
    for i, j in np.ndindex(4, 4):
        row, column = np.floor(v).astype(int) + i - 1, np.floor(u).astype(int) + j - 1
        there = (row >= 0) & (column >= 0) & (row < height) & (column < width) | (not is_black_outside)
        pixel = pixels[row.clip(0, height - 1), column.clip(0, width - 1)] * there[..., None]
        result += weight(v - row) * weight(u - column) * pixel
    return np.rint(result).clip(0, 255)


@pytest.mark.parametrize("flip", ["none", "horizontal"])
@pytest.mark.parametrize(("angle", "zoom"), [(5.0, 1.25), (-3.2, 0.75), (0.0, 1.5)])
def test_by_opencv_images_are_flipped_turned_and_squashed_as_in_the_published_codes(
    tmp_path, make_picture, monkeypatch, angle, zoom, flip
):
    size, squashed = (30, 44), (36, 40)
    image, number = make_picture(*size) // 2 * 2, np.arange(1, 1 + size[0] * size[1]).reshape(size)
    record = write_record(tmp_path, number % 5, number, image)
    options = ["INPUT.RESAMPLING", "opencv", "INPUT.RANDOM_ROTATION", 45.0, "INPUT.SQUASH", squashed]
    monkeypatch.setattr("numpy.random.uniform", lambda low, high: angle)
    monkeypatch.setattr("numpy.random.random", lambda: 0.1)
    sample = make_mapper((zoom,), flip=flip, options=[*CHOICE, *options])(record)
    if flip == "horizontal":
        image, number = image[:, ::-1], number[:, ::-1]

    # Around (W / 2, H / 2) where pixels count from their middles, as in those codes: half a pixel off the centre.
    (height, width), radians = size, np.deg2rad(angle)
    y, x = np.mgrid[:height, :width] - np.array([height / 2, width / 2])[:, None, None]
    v = (y * np.cos(radians) - x * np.sin(radians)) / zoom + height / 2
    u = (x * np.cos(radians) + y * np.sin(radians)) / zoom + width / 2
    rows, columns = (np.floor(np.arange(n) * (1 / (n / m))).astype(int) for n, m in zip(squashed, size, strict=True))
    v_squashed, u_squashed = ((np.arange(n) + 0.5) * m / n - 0.5 for n, m in zip(squashed, size, strict=True))
    turned = cubic(image, v, u, is_black_outside=True)
    expected = cubic(turned, *np.meshgrid(v_squashed, u_squashed, indexing="ij"), is_black_outside=False)
    # OpenCV's places are multiples of 1 / 32 px; version 4 is a level further off.
    most = 2 if int(cv2.__version__.split(".")[0]) >= 5 else 3
    assert np.abs(pixels_of(sample) - expected).max() <= most

    nearest = [np.floor(place + 0.5).astype(int) for place in (v, u)]
    sure = np.minimum(*(np.abs(p + 0.5 - np.round(p + 0.5)) for p in (v, u))) > 0.01
    inside = np.all([(n >= 0) & (n < m) for n, m in zip(nearest, size, strict=True)], axis=0)
    turned = np.where(inside, number[tuple(n.clip(0, m - 1) for n, m in zip(nearest, size, strict=True))], 0)
    sure, expected = (values[rows][:, columns] for values in (sure, turned))
    assert sure.mean() > 0.5 and (zoom > 1 or (expected == 0).any())
    assert np.array_equal(np.rint(sample["depth"].double().numpy() * zoom)[sure], expected[sure])
    assert np.array_equal(sample["sem_seg"][sure], np.where(expected == 0, 0, expected % 5)[sure])


@pytest.mark.parametrize("channels", [2, 5, 13])
def test_by_opencv_each_channel_moves_as_it_does_alone(channels):
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (channels, 33, 47), dtype=np.uint8))
    placement = published_mapper.PublishedPlacement(1.0, (40, 29), (0, 0), True, angle=7.0, zoom=1.2)
    for how in (cv2.INTER_CUBIC, cv2.INTER_NEAREST):
        moved = published_mapper._resized_by_opencv(image, placement, how)
        alone = [published_mapper._resized_by_opencv(image[[n]], placement, how) for n in range(channels)]
        assert moved.shape == (channels, 40, 29) and torch.equal(moved, torch.cat(alone))


def test_angles_are_drawn_evenly_either_way(tmp_path, monkeypatch):
    angles = []
    monkeypatch.setattr(published_mapper, "affine", lambda pixels, angle, **_: angles.append(angle) or pixels)
    mapper = make_mapper(options=["INPUT.RANDOM_ROTATION", 5.0])
    record = write_record(tmp_path, np.full((4, 4), 1))
    np.random.seed(0)
    for _ in range(300):
        mapper(record)
    drawn = np.array(angles[::2])
    assert np.array_equal(drawn, angles[1::2])  # image and labels
    assert -5 <= drawn.min() < -4.8 and 4.8 < drawn.max() <= 5
    assert abs(drawn.mean()) < 4 * 10 / np.sqrt(12 * 300)  # 4 standard errors


@pytest.mark.parametrize("resampling", ["antialias", "opencv"])
@pytest.mark.parametrize("is_train", [True, False])
def test_the_whole_image_is_squashed_to_one_size(tmp_path, make_picture, is_train, resampling):
    labels, image = np.random.default_rng(1).choice([0, 1, 4, 255], (40, 50)), make_picture(40, 50)
    record = write_record(tmp_path, labels, image=image)
    options = ["INPUT.SQUASH", (48, 32), "INPUT.RESAMPLING", resampling]
    sample = make_mapper(is_train=is_train, options=options)(record)
    expected = np.asarray(Image.open(record["file_name"]).resize((32, 48), Image.Resampling.BILINEAR))
    if resampling == "opencv":
        places = ((np.arange(n) + 0.5) * m / n - 0.5 for n, m in ((48, 40), (32, 50)))
        expected = cubic(image, *np.meshgrid(*places, indexing="ij"), is_black_outside=False)
    assert np.abs(pixels_of(sample).astype(int) - expected).max() <= 1
    assert (sample["height"], sample["width"]) == (40, 50) and ("sem_seg" in sample) == is_train
    if not is_train:  # where classes return by the nearest pixel, the model answers in the size of its input
        nearest = make_mapper(is_train=False, options=[*options, "TEST.RESIZE_BACK", "nearest"])(record)
        assert (nearest["height"], nearest["width"], nearest["file_size"]) == (48, 32, (40, 50))
    if is_train:
        half = 0.5 if resampling == "antialias" else 0
        rows, columns = (((np.arange(n) + half) * m / n).astype(int) for n, m in ((48, 40), (32, 50)))
        assert np.array_equal(sample["sem_seg"], labels[rows][:, columns])


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["INPUT.CROP.ENABLED", "True", "INPUT.SQUASH", (8, 8)], "INPUT.SQUASH"),
        (["MODEL.META_ARCHITECTURE", "DepthEstimator", "TEST.RESIZE_BACK", "nearest"], "TEST.RESIZE_BACK"),
        (["INPUT.RANDOM_ROTATION", 5.0, "INPUT.FORMAT", "BGR"], "INPUT.FORMAT"),
        (["INPUT.RANDOM_ROTATION", 5.0, "INPUT.RANDOM_SCALE", (1.0,)], "INPUT.RANDOM_SCALE"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(options, key):
    assert key in refusal(partial(make_mapper, options=options))
