"""From a record to a sample: labels and depth stay on the pixels they belong to, whatever is drawn."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from trees import refusal

from revisit.config import add_revisit_config
from revisit.data.finetuning import pixel_mapper
from revisit.data.finetuning.pixel_mapper import PixelMapper
from revisit.data.images.image_bytes import UnreadableImageError

from detectron2.config import get_cfg
from detectron2.data import DatasetCatalog, MetadataCatalog

# A colour for each id; ids that lie side by side in COARSE differ strongly.
COLORS = np.array([(20, 40, 60), (200, 30, 30), (30, 220, 40), (40, 40, 230), (240, 240, 10)], np.uint8)
COARSE = np.array([[0, 1, 2], [3, 4, 0]])


def set_of(name, **metadata):
    """A registered data set without records, for its metadata."""
    if name not in DatasetCatalog.list():
        DatasetCatalog.register(name, list)
        MetadataCatalog.get(name).set(**metadata)
    return name


FIVE = set_of("mapper_five", stuff_classes=list("abcde"), ignore_label=255)
FIVE_FROM_ONE = set_of("mapper_five_from_one", stuff_classes=list("abcde"), ignore_label=255, label_offset=1)
FIVE_AGAIN = set_of("mapper_five_again", stuff_classes=list("abcde"))
IGNORES_0 = set_of("mapper_ignores_0", stuff_classes=["a"], ignore_label=0)
DEPTH = set_of("mapper_depth", evaluator_type="depth")


def make_mapper(scale=(1.0, 1.0), crop=None, flip="none", sampling="range", train=(FIVE,), is_train=True, options=()):
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.INPUT.FORMAT = "RGB"
    cfg.INPUT.RANDOM_FLIP = flip
    cfg.INPUT.RANDOM_SCALE, cfg.INPUT.RANDOM_SCALE_SAMPLING = scale, sampling
    if crop:
        cfg.INPUT.CROP.ENABLED, cfg.INPUT.CROP.TYPE, cfg.INPUT.CROP.SIZE = True, "absolute", list(crop)
    cfg.MODEL.PIXEL_MEAN = [123.675, 116.28, 103.53]
    cfg.DATASETS.TRAIN = train
    cfg.merge_from_list(list(options))
    return PixelMapper(cfg, is_train)


def write_record(folder, labels=None, depth=None, image=None, file="a.png"):
    """Save what is given; without an image, each pixel has the colour of its label."""
    image = COLORS[np.where(labels == 255, 0, labels)] if image is None else image
    folder.mkdir(exist_ok=True)
    Image.fromarray(image).save(folder / file)
    record = {"file_name": str(folder / file), "image_id": "a"}
    if labels is not None:
        Image.fromarray(labels.astype(np.uint8)).save(folder / "labels.png")
        record["sem_seg_file_name"] = str(folder / "labels.png")
    if depth is not None:
        np.save(folder / "depth.npy", np.float32(depth))
        record["depth_file_name"] = str(folder / "depth.npy")
    return record


@pytest.fixture
def regions(tmp_path):
    """A picture of six regions of 20 x 20 px in the colours of their labels, with a depth of label + 1 metres."""
    labels = COARSE.repeat(20, axis=0).repeat(20, axis=1)
    return write_record(tmp_path, labels, depth=labels + 1)


def pixels_of(sample):
    """(H, W, 3)."""
    assert sample["image"].dtype == torch.uint8 and sample["image"].is_contiguous()
    return sample["image"].permute(1, 2, 0).numpy()


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


def test_a_range_is_drawn_from_evenly_and_choices_alone_are_chosen(tmp_path):
    record = write_record(tmp_path, np.full((100, 100), 1))
    np.random.seed(0)
    heights = {}
    for sampling, scale in (("range", (0.5, 2.0)), ("choice", (1.0, 1.2, 1.5))):
        mapper = make_mapper(scale, sampling=sampling)
        heights[sampling] = np.array([mapper(record)["image"].shape[1] for _ in range(200)])
    assert 50 <= heights["range"].min() < 57 and 193 < heights["range"].max() <= 200
    assert abs(heights["range"].mean() - 125) < 4 * 150 / np.sqrt(12 * 200)  # 4 standard errors
    chosen, counts = np.unique(heights["choice"], return_counts=True)
    assert chosen.tolist() == [100, 120, 150] and counts.min() > 40


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
    mapper = make_mapper((zoom,), sampling="choice", options=options)
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
    sample = make_mapper((zoom,), flip=flip, sampling="choice", options=options)(record)
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
    # OpenCV's places are multiples of 1 / 32 px.
    assert np.abs(pixels_of(sample) - expected).max() <= 2

    nearest = [np.floor(place + 0.5).astype(int) for place in (v, u)]
    sure = np.minimum(*(np.abs(p + 0.5 - np.round(p + 0.5)) for p in (v, u))) > 0.01
    inside = np.all([(n >= 0) & (n < m) for n, m in zip(nearest, size, strict=True)], axis=0)
    turned = np.where(inside, number[tuple(n.clip(0, m - 1) for n, m in zip(nearest, size, strict=True))], 0)
    sure, expected = (values[rows][:, columns] for values in (sure, turned))
    assert sure.mean() > 0.5 and (zoom > 1 or (expected == 0).any())
    assert np.array_equal(np.rint(sample["depth"].double().numpy() * zoom)[sure], expected[sure])
    assert np.array_equal(sample["sem_seg"][sure], np.where(expected == 0, 0, expected % 5)[sure])


def test_angles_are_drawn_evenly_either_way(tmp_path, monkeypatch):
    angles = []
    monkeypatch.setattr(pixel_mapper, "affine", lambda pixels, angle, **_: angles.append(angle) or pixels)
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
        (["INPUT.CROP.ENABLED", "True", "INPUT.SQUASH", (8, 8)], "INPUT.SQUASH"),
        (["MODEL.META_ARCHITECTURE", "DepthEstimator", "TEST.RESIZE_BACK", "nearest"], "TEST.RESIZE_BACK"),
        (["DATASETS.TRAIN", (FIVE, FIVE_FROM_ONE)], f"{FIVE}, {FIVE_FROM_ONE}"),
        (["DATASETS.TRAIN", (IGNORES_0,)], "ignore_label"),
        (["DATASETS.TRAIN", ("nowhere",)], "'nowhere'"),
    ],
)
def test_an_input_that_means_something_else_is_refused(options, key):
    assert key in refusal(partial(make_mapper, options=options))
