"""The picture of the views shows each image's boxes in place and every view beside it."""

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import random_views

from revisit import add_revisit_config
from revisit.data.crops import CropBoxes
from revisit.data.mapper import ViewMapper, Views
from revisit.data.reader import read_image
from revisit.errors import UserError
from revisit.viz import view_sheet
from revisit.viz.tiles import TILE
from revisit.viz.view_sheet import ANCHOR, POSITIVE, SMALL, draw_boxes, save_batch_sheets, save_view_sheet, view_tiles

from detectron2.config import CfgNode, get_cfg


def boxes(anchor, positive, *small):
    return Views(boxes=CropBoxes(np.array(anchor), np.array(positive), np.array(small).reshape(-1, 4), 0))


def has_colour(pixel, color):
    """Lines are antialiased, so a little of the image shines through."""
    return np.abs(pixel.astype(int) - color).max() <= 20


def test_boxes_are_drawn_in_their_colour_at_their_place():
    image = np.full((TILE, 2 * TILE, 3), 128, np.uint8)  # twice the size of a tile, so that places halve
    tile = draw_boxes(image, boxes((20, 20, 120, 120), (160, 10, 240, 150), (250, 40, 300, 90)))  # none touches another
    assert tile.shape == (TILE // 2, TILE, 3)
    for x0, y0, x1, y1, color in [(10, 10, 60, 60, ANCHOR), (80, 5, 120, 75, POSITIVE), (125, 20, 150, 45, SMALL)]:
        x, y = (x0 + x1) // 2, (y0 + y1) // 2
        for place in [(y, x0), (y, x1), (y0, x), (y1, x)]:
            assert has_colour(tile[place], color)
        assert tuple(tile[y, x]) == (128, 128, 128)
    assert tuple(tile[2, 2]) == (128, 128, 128)
    tile = draw_boxes(image[:, :TILE], boxes((0, 0, TILE, TILE), (30, 30, 40, 40)))  # a box around the whole image
    for place in [(50, 0), (0, 50), (50, TILE - 1), (TILE - 1, 50)]:
        assert has_colour(tile[place], ANCHOR)


def test_every_view_is_shown_in_a_frame_of_its_colour():
    views = Views(anchor=np.full((8, 8, 3), 11, np.uint8), positive=np.full((8, 8, 3), 22, np.uint8))
    assert len(view_tiles(views)) == 2
    views["small"] = np.full((2, 4, 4, 3), 33, np.uint8)
    columns = [(11, ANCHOR), (22, POSITIVE), (33, SMALL), (33, SMALL)]
    for tile, (level, color) in zip(view_tiles(views), columns, strict=True):
        assert tile.shape == (TILE, TILE, 3) and (tile[4:-4, 4:-4] == level).all()
        assert tuple(tile[0, TILE // 2]) == tuple(tile[TILE // 2, -1]) == color


def config(folder) -> CfgNode:
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.SEED, cfg.DATASETS.TRAIN = 5, (f"folder:{folder}",)
    cfg.VIEWS.LARGE_SIZE, cfg.VIEWS.SMALL_SIZE = TILE, 20  # large views are shown pixel by pixel
    return cfg


@pytest.fixture
def sheets(monkeypatch) -> list[list]:
    """The rows of each sheet that is saved."""
    found, save = [], view_sheet.save_sheet
    monkeypatch.setattr(view_sheet, "save_sheet", lambda path, rows, *more, **options: (
        found.append(rows), save(path, rows, *more, **options)))  # fmt: skip
    return found


@pytest.mark.parametrize("num_files", [3, 12])
def test_the_sheet_of_a_configuration_shows_the_views_that_training_sees(tmp_path, write_pictures, sheets, num_files):
    paths = write_pictures(tmp_path / "photos", num_files)
    cfg = config(tmp_path / "photos")
    save_view_sheet(cfg, tmp_path / "views.png")
    (rows,) = sheets
    assert [len(row.tiles) for row in rows] == [7] * min(num_files, 8)
    last = ViewMapper.from_config(cfg)(read_image(paths[-1]), 0, num_files - 1)
    assert np.array_equal(rows[-1].tiles[1][4:-4, 4:-4], last["anchor"][4:-4, 4:-4])
    assert np.asarray(Image.open(tmp_path / "views.png")).shape[1] > 7 * TILE


def test_unreadable_images_are_left_out_and_a_sheet_of_none_is_refused(tmp_path, write_pictures, sheets):
    paths = write_pictures(tmp_path / "photos", 3)
    paths[1].write_bytes(b"not a picture")
    save_view_sheet(config(tmp_path / "photos"), tmp_path / "views.png")
    assert len(sheets[0]) == 2
    for path in paths:
        path.write_bytes(b"not a picture")
    with pytest.raises(UserError, match="none of 3 images .* can be read; the first: .*000.png"):
        save_view_sheet(config(tmp_path / "photos"), tmp_path / "views.png")


def test_a_batch_is_written_in_pages(tmp_path, sheets, monkeypatch):
    monkeypatch.setattr(view_sheet, "BATCH_ROWS", 2)
    views = random_views(3) | {"num_fallbacks": torch.zeros(3)}
    assert save_batch_sheets(views, tmp_path / "b") == [tmp_path / "b_1.png", tmp_path / "b_2.png"]
    assert [[len(row.tiles) for row in rows] for rows in sheets] == [[6, 6], [6]]
    save_batch_sheets([{"image": views["anchor"][0]}, {"image": views["small"][0, 0]}], tmp_path / "detector")
    assert [len(row.tiles) for row in sheets[2]] == [1, 1] and (tmp_path / "detector_1.png").is_file()
