"""From a record to a sample: labels and depth stay on the pixels they belong to, whatever is drawn."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pixel_records import (
    COARSE,
    COLORS,
    DEPTH,
    FIVE,
    FIVE_AGAIN,
    FIVE_FROM_ONE,
    IGNORES_0,
    make_mapper,
    pixels_of,
    write_record,
)
from trees import refusal

from revisit.data.images.image_bytes import UnreadableImageError


@pytest.fixture
def regions(tmp_path):
    """A picture of six regions of 20 x 20 px in the colours of their labels, with a depth of label + 1 metres."""
    labels = COARSE.repeat(20, axis=0).repeat(20, axis=1)
    return write_record(tmp_path, labels, depth=labels + 1)


def inside_regions(labels, margin):
    """Pixels whose neighbours up to ``margin`` px away have the same label: no colours mix there."""
    padded = np.pad(labels, margin, mode="edge")
    height, width = labels.shape
    reach = range(2 * margin + 1)
    return np.all([padded[y : y + height, x : x + width] == labels for y in reach for x in reach], axis=0)


@pytest.mark.parametrize("scale", [0.5, 0.77, 1.0, 1.3, 2.0])
def test_labels_and_depth_stay_on_their_pixels(regions, scale):
    np.random.seed(0)
    same_classes = (FIVE, FIVE_AGAIN, DEPTH)
    mapper = make_mapper((scale, scale), crop=(50, 70), flip="horizontal", train=same_classes)
    seen = set()
    for _ in range(12):
        sample = mapper(regions)
        labels, depth = sample["sem_seg"].numpy(), sample["depth"].numpy()
        known = (labels != 255) & inside_regions(labels, margin=2)
        assert known.sum() > 150
        assert np.abs(pixels_of(sample)[known].astype(int) - COLORS[labels[known]]).max() <= 1
        assert np.allclose(depth[known] * scale, labels[known] + 1, rtol=1e-6)
        assert np.array_equal(depth == 0, labels == 255)
        seen.add(labels.tobytes())
    assert len(seen) > 1


@pytest.mark.parametrize("flip", ["none", "horizontal"])
def test_a_sample_is_the_file_or_its_mirror_image(tmp_path, flip):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (30, 41, 3), dtype=np.uint8)
    labels = rng.choice([0, 1, 2, 3, 4, 255], (30, 41))
    depth = rng.uniform(0, 9, (30, 41)).astype(np.float32)
    record = write_record(tmp_path, labels, depth, image) | {"height": 1, "width": 1}  # which the file knows better
    mapper = make_mapper(flip=flip)
    np.random.seed(0)
    flipped = 0
    for _ in range(200 if flip == "horizontal" else 2):
        sample = mapper(record)
        step = 1 if np.array_equal(sample["sem_seg"][0, :2], labels[0, :2]) else -1
        assert np.array_equal(pixels_of(sample), image[:, ::step])
        assert sample["sem_seg"].dtype == torch.int64 and np.array_equal(sample["sem_seg"], labels[:, ::step])
        assert sample["depth"].dtype == torch.float32 and np.array_equal(sample["depth"], depth[:, ::step])
        assert (sample["height"], sample["width"], sample["image_id"]) == (30, 41, "a")
        flipped += step == -1
    assert 70 < flipped < 130 if flip == "horizontal" else flipped == 0  # 4 standard deviations of a fair coin


def test_a_crop_is_a_window_of_the_image_and_every_place_occurs(tmp_path):
    places = np.arange(5 * 6).reshape(5, 6)  # each pixel tells where it was
    record = write_record(tmp_path, depth=places + 1, image=np.stack([places] * 3, axis=-1).astype(np.uint8))
    mapper = make_mapper(crop=(4, 4), train=(DEPTH,))
    np.random.seed(0)
    corners = set()
    for _ in range(100):
        sample = mapper(record)
        y, x = divmod(int(sample["image"][0, 0, 0]), 6)
        window = places[y : y + 4, x : x + 4]
        assert np.array_equal(sample["image"][1], window) and np.array_equal(sample["depth"], window + 1)
        corners.add((y, x))
    assert corners == {(y, x) for y in range(2) for x in range(3)}


@pytest.mark.parametrize("flip", ["none", "horizontal"])
@pytest.mark.parametrize("size", [(10, 12), (4, 30), (30, 4)])
def test_what_a_small_image_does_not_fill_is_mean_colour_void_and_without_depth(tmp_path, size, flip):
    record = write_record(tmp_path, np.full(size, 3), np.full(size, 2.5))
    np.random.seed(1)
    for _ in range(4):
        sample = make_mapper(crop=(14, 20), flip=flip)(record)
        filled = np.zeros((14, 20), bool)
        filled[: size[0], : size[1]] = True
        assert np.array_equal(sample["sem_seg"], np.where(filled, 3, 255))
        assert np.array_equal(sample["depth"], np.where(filled, 2.5, 0))
        assert np.array_equal(pixels_of(sample), np.where(filled[..., None], COLORS[3], (124, 116, 104)))


def test_a_range_of_scales_is_drawn_from_evenly(tmp_path):
    record = write_record(tmp_path, np.full((100, 100), 1))
    np.random.seed(0)
    mapper = make_mapper((0.5, 2.0))
    heights = np.array([mapper(record)["image"].shape[1] for _ in range(200)])
    assert 50 <= heights.min() < 57 and 193 < heights.max() <= 200
    assert abs(heights.mean() - 125) < 4 * 150 / np.sqrt(12 * 200)  # 4 standard errors


@given(
    size=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    scale=st.floats(0.3, 2.5),
    crop=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    seed=st.integers(0, 1000),
)
def test_a_sample_has_the_size_of_the_crop_and_no_id_or_distance_that_was_not_there(
    tmp_path_factory, size, scale, crop, seed
):
    rng = np.random.default_rng(seed)
    labels, depth = rng.choice([0, 2, 4, 255], size), 1 + rng.integers(0, 4, size)
    record = write_record(tmp_path_factory.mktemp("sample"), labels, depth)
    np.random.seed(seed)
    sample = make_mapper((scale, scale), crop=crop, flip="horizontal")(record)
    assert sample["image"].shape == (3, *crop)
    assert sample["sem_seg"].shape == sample["depth"].shape == torch.Size(crop)
    assert set(sample["sem_seg"].unique().tolist()) <= {*np.unique(labels).tolist(), 255}
    filled = sample["depth"] > 0
    assert filled.sum() == np.prod([min(max(1, round(a * scale)), b) for a, b in zip(size, crop, strict=True)])
    distances = (sample["depth"][filled].double() * scale).numpy()
    assert np.allclose(distances, np.round(distances), atol=1e-5)
    assert set(np.round(distances)) <= set(np.unique(depth).tolist())


@given(length=st.integers(2, 40), scaled=st.integers(2, 80))
def test_scaled_labels_are_those_of_the_nearest_pixel_centre(tmp_path_factory, length, scaled):
    depth = np.arange(1, length + 1)[None].repeat(2, axis=0)
    record = write_record(tmp_path_factory.mktemp("row"), depth=depth, image=np.zeros((2, length, 3), np.uint8))
    scale = scaled / length
    sample = make_mapper((scale, scale), train=(DEPTH,))(record)
    centres = (np.arange(sample["depth"].shape[1]) + 0.5) * length / sample["depth"].shape[1]
    nearest = np.rint(sample["depth"][0].double().numpy() * scale - 1)  # a pixel number, since pixel n has depth n + 1
    assert np.abs(nearest + 0.5 - centres).max() <= 0.5 + 1e-4


@pytest.mark.parametrize("scale", [0.6, 1.7])
def test_images_are_resized_as_by_pil(tmp_path, make_picture, scale):
    image = make_picture(40, 50)
    sample = make_mapper((scale, scale))(write_record(tmp_path, np.full((40, 50), 1), image=image))
    size = (round(50 * scale), round(40 * scale))
    expected = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))  # with antialiasing
    assert np.abs(pixels_of(sample).astype(int) - expected).max() <= 1


def test_for_tests_the_image_is_the_file_and_labels_are_not_read(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (31, 44, 3), dtype=np.uint8)
    record = write_record(tmp_path, np.full((31, 44), 1), np.ones((31, 44)), image)
    (tmp_path / "labels.png").write_bytes(b"not read")
    sample = make_mapper((0.5, 2.0), crop=(8, 8), flip="horizontal", is_train=False)(record)
    assert np.array_equal(pixels_of(sample), image)
    assert sample == {**record, "height": 31, "width": 44, "image": sample["image"]}


def test_ids_that_count_from_one_become_train_ids(tmp_path):
    record = write_record(tmp_path, np.array([[0, 1, 5]]), image=np.zeros((1, 3, 3), np.uint8))
    assert make_mapper(train=(FIVE_FROM_ONE,))(record)["sem_seg"].tolist() == [[255, 0, 4]]


def test_files_that_do_not_fit_are_named(tmp_path, regions):
    record, other = (
        write_record(tmp_path / name, np.full(size, 1), np.ones(size), file="a.jpg")
        for name, size in (("one", (10, 12)), ("other", (12, 10)))
    )
    for key in ("sem_seg_file_name", "depth_file_name"):
        line = refusal(make_mapper(), record | {key: other[key]})
        assert f"{other[key]} is 10 x 12 pixels, but its image {record['file_name']} is 12 x 10" in line
    (tmp_path / "one/a.jpg").write_bytes((tmp_path / "one/a.jpg").read_bytes()[:300])
    assert f"{tmp_path}/one/a.jpg" in refusal(make_mapper(is_train=False), record)
    with pytest.raises(UnreadableImageError, match="one/a.jpg"):  # for which the loader takes another
        make_mapper()(record)
    plain = write_record(tmp_path, image=np.zeros((4, 4, 3), np.uint8), file="b.png")
    assert "b.png has neither labels nor depth" in refusal(make_mapper(), plain)
    assert "DATASETS.TRAIN" in refusal(make_mapper(train=(DEPTH,)), regions)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["INPUT.FORMAT", "BGR"], "INPUT.FORMAT"),
        (["INPUT.RANDOM_FLIP", "vertical"], "INPUT.RANDOM_FLIP"),
        (["INPUT.RANDOM_SCALE", (1.0,)], "INPUT.RANDOM_SCALE"),
        (["INPUT.CROP.ENABLED", "True"], "INPUT.CROP"),
        (["INPUT.CROP.ENABLED", "True", "INPUT.CROP.TYPE", "absolute"], "INPUT.CROP"),
        (["DATASETS.TRAIN", (FIVE, FIVE_FROM_ONE)], f"{FIVE}, {FIVE_FROM_ONE}"),
        (["DATASETS.TRAIN", (IGNORES_0,)], "ignore_label"),
        (["DATASETS.TRAIN", ("nowhere",)], "'nowhere'"),
    ],
)
def test_an_input_that_means_something_else_is_refused(options, key):
    assert key in refusal(partial(make_mapper, options=options))
