"""What people look at shows images with more than 8 bits as their networks saw them, not blank or nearly black."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from deep import photograph, write_at
from PIL import Image
from pycocotools.mask import encode
from trees import refused

from projects.Discover.sheet import save_found
from projects.Labels.pictures import suspect_tile
from projects.Pixels import grey_levels
from projects.Rows.hashes import digests_of
from projects.Rows.row_table import RowTable
from projects.Rows.similar import Similar, draw_similar
from projects.Rows.thumbnails import thumbnails
from revisit.data.images.pixel_format import PixelFormat

TWELVE = PixelFormat(12)
NUMBERS = range(3)


@pytest.fixture
def shallow(tmp_path):
    return [str(write_at("8", tmp_path / f"shallow{n}", photograph(n))) for n in NUMBERS]


@pytest.fixture
def deep(tmp_path):
    return [str(write_at("12", tmp_path / f"deep{n}", photograph(n))) for n in NUMBERS]


def table_of(files, **flags):
    count = len(files)
    about = {"of": "image", "network": "a network", "digest": "", "flags": flags, "options": {}}
    return RowTable(
        np.eye(count, dtype=np.float32), np.array(files), np.zeros((count, 4)), np.array([""] * count), about
    )


def same_picture(one, other):
    levels = np.asarray(one, int), np.asarray(other, int)
    return np.abs(levels[0] - levels[1]).max() <= 1 and levels[0].std() > 20


@pytest.mark.parametrize("flags", [{"INPUT.BIT_DEPTH": 12}, {}], ids=["as embedded", "by the images"])
def test_thumbnails_of_deep_images_are_those_of_shallow_ones(deep, shallow, flags):
    assert same_picture(thumbnails(table_of(deep, **flags), 48), thumbnails(table_of(shallow), 48))


def test_neighbours_of_a_deep_query_are_drawn(tmp_path, deep, shallow):
    similar = Similar(np.array([1, 2]), np.array([0.5, 0.4], np.float32))
    drawn = []
    for name, files in {"deep": deep, "shallow": shallow}.items():
        query = tmp_path / "query.png"
        shutil.copy(files[0], query)
        draw_similar(tmp_path / f"{name}.png", table_of(files), similar, query, None)
        drawn.append(Image.open(tmp_path / f"{name}.png"))
    assert same_picture(*drawn)


def test_a_suspected_label_of_a_deep_image_is_drawn(deep, shallow):
    tiles = [
        suspect_tile(SimpleNamespace(file_name=file, box=[8, 8, 40, 40], kind="odd", suggestion=""), pixels)
        for file, pixels in ((deep[0], TWELVE), (shallow[0], PixelFormat()))
    ]
    assert same_picture(*tiles)


def test_objects_found_in_deep_images_are_drawn(tmp_path, deep, shallow):
    mask = np.zeros((48, 64), bool)
    mask[10:30, 10:30] = True
    found = {"bbox": [10.0, 10.0, 20.0, 20.0], "score": 0.9, "segmentation": encode(np.asfortranarray(mask, np.uint8))}
    for name, files, pixels in (("deep", deep, TWELVE), ("shallow", shallow, PixelFormat())):
        save_found(tmp_path / f"{name}.png", [{"file_name": file, "objects": [found]} for file in files], pixels)
    assert same_picture(Image.open(tmp_path / "deep.png"), Image.open(tmp_path / "shallow.png"))


def test_hashes_of_deep_images_are_those_of_shallow_ones(tmp_path, deep, shallow):
    of_deep = digests_of([{"file_name": file} for file in deep], tmp_path / "a", TWELVE)
    of_shallow = digests_of([{"file_name": file} for file in shallow], tmp_path / "b", PixelFormat())
    assert (of_deep.bits != of_shallow.bits).mean() < 0.05


def test_hashes_of_images_that_are_seen_in_another_way_are_made_in_another_folder(tmp_path, deep, shallow):
    records = [{"file_name": file} for file in deep]
    formats = [TWELVE, PixelFormat(ranges=((0.0, 4095.0),)), PixelFormat(ranges=((0.0, 4095.0),), fill=(9, 9, 9))]
    for number, pixels in enumerate(formats):
        digests_of(records, tmp_path / str(number), pixels)
        digests_of(records, tmp_path / str(number), replace(pixels, shown=((1.0, 0.0),) * 3))
        others = [other for other in formats if other != pixels]
        for other in (*others, PixelFormat(16)):
            refused("was made with other settings", digests_of, records, tmp_path / str(number), other)
    photographs = [{"file_name": file} for file in shallow]
    digests_of(photographs, tmp_path / "photographs", PixelFormat())
    assert json.loads((tmp_path / "photographs/settings.json").read_text()).keys() == {"images"}


def test_what_a_table_says_of_its_samples_is_not_looked_for_in_its_images(shallow, monkeypatch):
    monkeypatch.setattr(grey_levels, "find_bits", pytest.fail)
    assert table_of(shallow, **{"INPUT.BIT_DEPTH": None}).pixels == PixelFormat()
    assert table_of(shallow, **{"INPUT.BIT_DEPTH": 12}).pixels == TWELVE
