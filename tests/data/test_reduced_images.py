"""VIEWS.REDUCED_IMAGES: boxes and looks are those of whole images; JPEGs are decoded as small as their crops allow."""

import io
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny import tiny_config
from trees import write

from revisit.data.images.reader import Picture, open_record, read_image
from revisit.data.loading.loader import ResumableLoader
from revisit.data.views.augmentation import draw_look
from revisit.data.views.augmentation_on_arrays import apply_look
from revisit.data.views.crops import crop_and_reduce, crop_and_resize, largest_reduction, reduced_boxes
from revisit.data.views.mapper import ViewMapper
from revisit.evaluation.features import SingleViewDataset
from revisit.randomness import Stream, counter_rng
from revisit.viz import pretraining_sheets

NAMES = ("anchor", "positive", "small")
REDUCED = ("VIEWS.REDUCED_IMAGES", True)


def smooth(height: int, width: int) -> np.ndarray:
    """A picture without edges, different in each channel and in each corner."""
    y, x = np.mgrid[0:height, 0:width] / 120
    return np.stack([128 + 90 * np.sin(x * a + y * b) for a, b in ((1, 0.3), (0.5, 1), (0.2, 0.7))], -1).astype(
        np.uint8
    )


def encoded(pixels: np.ndarray, kind: str = "JPEG", orientation: int = 1, **options: object) -> bytes:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(file, kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {}), **options)
    return file.getvalue()


def mapper_of(*options: object) -> ViewMapper:
    """Without AutoAugment, which makes much of a grey level."""
    return ViewMapper.from_config(tiny_config("VIEWS.POLICY", "standard", *options))


def assert_same(one: dict, other: dict) -> None:
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one if name != "boxes")
    assert all(np.array_equal(*boxes) for boxes in zip(one["boxes"], other["boxes"], strict=True))


@pytest.mark.parametrize("policy", ["standard", "autoaugment", "standard_or_autoaugment"])
@pytest.mark.parametrize("size", [(60, 80), (331, 200), (3, 5)])
@pytest.mark.parametrize(("resampling", "resize"), [("area", crop_and_reduce), ("antialias", crop_and_resize)])
def test_all_boxes_are_drawn_then_the_looks_in_the_order_of_the_views(make_picture, policy, size, resampling, resize):
    options = ("VIEWS.POLICY", policy, "VIEWS.RESAMPLING", resampling)
    picture, mapper = make_picture(*size), ViewMapper.from_config(tiny_config(*options))
    for index in range(10):
        rng = counter_rng(mapper.seed, Stream.VIEWS, 2, index)
        boxes = mapper.crops(*size, rng)
        expected = []
        for n, box in enumerate([boxes.anchor, boxes.positive, *boxes.small]):
            shares = {"grey_probability": mapper.grey_probability, "blur_probability": mapper.blur_probability}
            look = draw_look(policy if n else "standard", rng, **shares)
            expected.append(apply_look(resize(picture, box, 32 if n < 2 else 16), look))
        for same in (mapper(picture, 2, index), mapper.of_picture(Picture(picture), 2, index)):
            for view, other in zip([same["anchor"], same["positive"], *same["small"]], expected, strict=True):
                assert np.array_equal(view, other)


@st.composite
def boxes_in_an_image(draw):
    width, height = (draw(st.integers(1, 6000)) for _ in range(2))
    boxes = []
    for _ in range(draw(st.integers(1, 6))):
        (x0, x1), (y0, y1) = (sorted(draw(st.tuples(*[st.integers(0, n)] * 2))) for n in (width - 1, height - 1))
        boxes.append((x0, y0, x1 + 1, y1 + 1))
    return height, width, np.array(boxes), np.array([draw(st.integers(1, 500)) for _ in boxes])


@settings(max_examples=50)
@given(boxes_in_an_image())
def test_the_reduction_is_the_largest_that_leaves_every_crop_the_pixels_of_its_view(case):
    height, width, boxes, sizes = case
    sides = boxes[:, 2:] - boxes[:, :2]
    fits = [r for r in (1, 2, 4, 8) if (sides // r >= sizes[:, None]).all()]
    assert largest_reduction(boxes, sizes) == max(fits, default=1)
    for reduction in (1, 2, 4, 8):
        reduced = reduced_boxes(boxes, reduction)
        assert (np.abs(reduced - boxes / reduction) <= 0.5).all()
        assert (reduced >= 0).all() and (reduced <= -(-np.array([width, height] * 2) // reduction)).all()
        assert (reduced[:, 2:] - reduced[:, :2] >= (boxes[:, 2:] - boxes[:, :2]) // reduction).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_views_of_a_reduced_image_are_nearly_those_of_the_whole(orientation):
    picture = Picture(encoded(smooth(403, 531), orientation=orientation))
    whole = picture.decode()
    assert picture.size == whole.shape[:2] == ((531, 403) if orientation > 4 else (403, 531))
    for reduction in (2, 4, 8):
        assert picture.decode(reduction).shape == (*(-(-side // reduction) for side in picture.size), 3)
    mapper, reductions = mapper_of(*REDUCED), set()
    for index in range(8):
        reductions.add(mapper.plan(*picture.size, 0, index, reducible=True).reduction)
        one, other = mapper.of_picture(picture, 0, index), mapper(whole, 0, index)
        assert all(np.array_equal(*boxes) for boxes in zip(one["boxes"], other["boxes"], strict=True))
        differences = [np.abs(one[name].astype(int) - other[name]).mean() for name in NAMES]
        assert max(differences) < 2, differences
    assert reductions >= {4}


def test_what_is_no_jpeg_or_has_no_pixels_to_spare_is_cut_whole(make_picture):
    large, small = make_picture(300, 400), make_picture(40, 50)
    mapper = mapper_of(*REDUCED)
    for index in range(5):
        expected = mapper_of()(large, 0, index)
        for data in (large, encoded(large, "PNG")):
            assert_same(mapper.of_picture(Picture(data), 0, index), expected)
        jpeg = Picture(encoded(small))
        assert_same(mapper.of_picture(jpeg, 0, index), mapper_of()(jpeg.decode(), 0, index))
    assert Picture(large).size == Picture(encoded(large, "PNG")).size == (300, 400)
    assert np.array_equal(Picture(encoded(large, "PNG")).decode(8), large)


def test_where_pil_and_opencv_disagree_about_the_orientation_the_whole_image_is_cut():
    """PIL reads that of XMP, OpenCV does not."""
    packet = b'http://ns.adobe.com/xap/1.0/\0<rdf:Description tiff:Orientation="6"/>'
    jpeg = encoded(smooth(300, 500))
    data = jpeg[:2] + b"\xff\xe1" + (len(packet) + 2).to_bytes(2) + packet + jpeg[2:].replace(b"Exif\0\0", b"none\0\0")
    picture = Picture(data)
    assert picture.size == (500, 300) and picture.decode().shape == (300, 500, 3)
    for index in range(3):
        assert_same(mapper_of(*REDUCED).of_picture(picture, 0, index), mapper_of()(picture.decode(), 0, index))


def without_quantisation(jpeg: bytes) -> bytes:
    """What has a sound header and an end, and cannot be decoded."""
    start = jpeg.index(b"\xff\xdb")
    return jpeg[: start + 1] + b"\xfe" + jpeg[start + 2 :]  # a comment


@pytest.fixture
def photographs(tmp_path):
    """Twelve large JPEGs of which two are broken: one ends too early, and one shows it when it is decoded."""
    paths = [tmp_path / f"photos/{n:02d}.jpg" for n in range(12)]
    for n, path in enumerate(paths):
        write(path, encoded(np.roll(smooth(240, 320), 25 * n, axis=1)))
    paths[3].write_bytes(paths[3].read_bytes()[:-700])
    paths[7].write_bytes(without_quantisation(paths[7].read_bytes()))
    return paths


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_reads_reduced_images_and_replaces_broken_ones(photographs, workers):
    cfg = tiny_config("DATASETS.TRAIN", (f"folder:{photographs[0].parent}",), "SOLVER.IMS_PER_BATCH", 12, *REDUCED)
    cfg.DATALOADER.NUM_WORKERS = workers
    loader, mapper = ResumableLoader(cfg), ViewMapper.from_config(cfg)
    (batch,) = islice(loader, 1)
    for n, name in enumerate(loader.images_of(0)):
        index = [str(path) for path in photographs].index(name)
        shown = photographs[index + (index in (3, 7))]
        views = mapper.of_picture(open_record({"file_name": str(shown)}), 0, index)
        assert all(np.array_equal(batch[each][n].movedim(-3, -1), views[each]) for each in NAMES)
        assert not np.array_equal(views["anchor"], mapper(read_image(shown), 0, index)["anchor"])
    assert sorted(error.partition(":")[0] for error in batch["read_errors"]) == [str(photographs[n]) for n in (3, 7)]


def test_the_evaluation_of_the_recipes_own_views_does_the_same(photographs):
    records, mapper = [{"file_name": str(path)} for path in photographs], mapper_of(*REDUCED)
    dataset = SingleViewDataset(records, mapper)
    for index, shown in ((0, 0), (3, 4), (7, 8)):
        views = mapper.of_picture(open_record(records[shown]), 0, index)
        for place, name in enumerate(("anchor", "positive"), start=2 * index):
            assert np.array_equal(dataset[place]["image"].movedim(0, -1), views[name])


def test_a_sheet_draws_the_boxes_on_the_whole_image(photographs, tmp_path, monkeypatch):
    sheets = []
    monkeypatch.setattr(pretraining_sheets, "save_sheet", lambda path, rows, *_, **options: sheets.append(rows))
    for options in ((), REDUCED):
        cfg = tiny_config("DATASETS.TRAIN", (f"folder:{photographs[0].parent}",), *options)
        pretraining_sheets.save_view_sheet(cfg, tmp_path / "views.png", num_images=3)
    for whole, reduced in zip(*sheets, strict=True):
        assert np.array_equal(whole.tiles[0], reduced.tiles[0]) and len(whole.tiles) == len(reduced.tiles)
        assert not np.array_equal(whole.tiles[1], reduced.tiles[1])
