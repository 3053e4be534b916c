"""Views of an image: what is drawn in which order, and what stands in for an image that cannot be read."""

import io
from itertools import islice

import numpy as np
import pytest
from PIL import Image
from tiny import tiny_config
from trees import write

from projects.FrozenEvaluations.monitor import SingleViewDataset
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import Picture, open_record
from revisit.data.loading.loader import ResumableLoader
from revisit.data.randomness import Stream, counter_rng
from revisit.data.views.looks import LOOK_REGISTRY
from revisit.data.views.mapper import ViewMapper
from revisit.data.views.resampling import crop_and_reduce, crop_and_resize

NAMES = ("anchor", "positive", "small")


@pytest.mark.parametrize("policy", ["standard", "autoaugment", "standard_or_autoaugment"])
@pytest.mark.parametrize("size", [(60, 80), (331, 200), (3, 5)])
@pytest.mark.parametrize(("resampling", "resize"), [("area", crop_and_reduce), ("antialias", crop_and_resize)])
def test_all_boxes_are_drawn_then_the_looks_in_the_order_of_the_views(make_picture, policy, size, resampling, resize):
    options = ("VIEWS.POLICY", policy, "VIEWS.RESAMPLING", resampling)
    cfg, picture = tiny_config(*options), make_picture(*size)
    mapper, draws = ViewMapper.from_config(cfg), [LOOK_REGISTRY.get(name)(cfg) for name in ("standard", policy)]
    for index in range(10):
        rng = counter_rng(mapper.seed, Stream.VIEWS, 2, index)
        boxes = mapper.crops(*size, rng)
        expected = []
        for n, box in enumerate([boxes.anchor, boxes.positive, *boxes.small]):
            look = draws[n > 0](rng)
            expected.append(look.apply(resize(picture, box, 32 if n < 2 else 16)))
        for same in (mapper(picture, 2, index), mapper.of_picture(Picture(picture), 2, index)):
            for view, other in zip([same["anchor"], same["positive"], *same["small"]], expected, strict=True):
                assert np.array_equal(view, other)


def smooth(height: int, width: int) -> np.ndarray:
    """A picture without edges, different in each channel and in each corner."""
    y, x = np.mgrid[0:height, 0:width] / 120
    return np.stack([128 + 90 * np.sin(x * a + y * b) for a, b in ((1, 0.3), (0.5, 1), (0.2, 0.7))], -1).astype(
        np.uint8
    )


def jpeg_of(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()


def without_quantisation(jpeg: bytes) -> bytes:
    """What has a sound header and an end, and cannot be decoded."""
    start = jpeg.index(b"\xff\xdb")
    return jpeg[: start + 1] + b"\xfe" + jpeg[start + 2 :]  # a comment


@pytest.fixture
def photographs(tmp_path):
    """Twelve large JPEGs of which two are broken: one ends too early, and one shows it when it is decoded."""
    paths = [tmp_path / f"photos/{n:02d}.jpg" for n in range(12)]
    for n, path in enumerate(paths):
        write(path, jpeg_of(np.roll(smooth(240, 320), 25 * n, axis=1)))
    paths[3].write_bytes(paths[3].read_bytes()[:-700])
    paths[7].write_bytes(without_quantisation(paths[7].read_bytes()))
    return paths


def test_a_run_replaces_images_that_are_broken(photographs):
    cfg = tiny_config("DATASETS.TRAIN", (f"folder:{photographs[0].parent}",), "SOLVER.IMS_PER_BATCH", 12)
    loader, mapper = ResumableLoader(cfg), ViewMapper.from_config(cfg)
    (batch,) = islice(loader, 1)
    for n, name in enumerate(loader.images_of(0)):
        index = [str(path) for path in photographs].index(name)
        shown = photographs[index + (index in (3, 7))]
        views = mapper.of_picture(open_record({"file_name": str(shown)}, PHOTOGRAPHS), 0, index)
        assert all(np.array_equal(batch[each][n].movedim(-3, -1), views[each]) for each in NAMES)
    assert sorted(error.partition(":")[0] for error in batch["read_errors"]) == [str(photographs[n]) for n in (3, 7)]


def test_an_evaluation_of_views_replaces_them_alike(photographs):
    records, mapper = [{"file_name": str(path)} for path in photographs], ViewMapper.from_config(tiny_config())
    dataset = SingleViewDataset(records, mapper, PHOTOGRAPHS)
    for index, shown in ((0, 0), (3, 4), (7, 8)):
        views = mapper.of_picture(open_record(records[shown], PHOTOGRAPHS), 0, index)
        for place, name in enumerate(("anchor", "positive"), start=2 * index):
            assert np.array_equal(dataset[place]["image"].movedim(0, -1), views[name])
