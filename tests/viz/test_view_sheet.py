"""The picture of the views shows each image's boxes in place and every view beside it."""

import numpy as np
import pytest
from PIL import Image

from revisit import add_revisit_config
from revisit.data.crops import ConstrainedMultiCrop, CropBoxes
from revisit.data.mapper import ViewMapper, Views
from revisit.data.reader import read_image
from revisit.errors import UserError
from revisit.viz.view_sheet import ANCHOR, GAP, POSITIVE, SMALL, TILE, save_view_sheet, view_sheet

from detectron2.config import get_cfg

CAPTION = 24  # px
STEP = TILE + GAP


def views_at(anchor, positive, small):
    """Views in plain colours, cut from the given boxes."""
    views = Views(
        anchor=np.full((8, 8, 3), 11, np.uint8),
        positive=np.full((8, 8, 3), 22, np.uint8),
        boxes=CropBoxes(np.array(anchor), np.array(positive), np.array(small).reshape(-1, 4), 0),
    )
    if small:
        views["small"] = np.full((len(small), 4, 4, 3), 33, np.uint8)
    return views


def has_colour(pixel, color):
    """Lines are antialiased, so a little of the image shines through."""
    return np.abs(pixel.astype(int) - color).max() <= 20


def drawn_views(image, num_small):
    return ViewMapper(ConstrainedMultiCrop(num_small=num_small), 32, 16, "standard", 0)(image, 0, 0)


@pytest.mark.parametrize("num_small", [0, 1, 4])
@pytest.mark.parametrize("num_images", [1, 3])
def test_a_sheet_has_a_row_an_image_and_a_column_a_view(make_picture, num_images, num_small):
    images = [make_picture(40 + 10 * n, 60) for n in range(num_images)]
    sheet = view_sheet(images, [drawn_views(image, num_small) for image in images])
    assert sheet.shape == (CAPTION + num_images * STEP, (3 + num_small) * STEP, 3) and sheet.dtype == np.uint8


def test_boxes_are_drawn_in_their_colour_at_their_place():
    # Twice the size of a tile, so that places halve; no two boxes touch.
    image = np.full((TILE, 2 * TILE, 3), 128, np.uint8)
    views = views_at(anchor=(20, 20, 120, 120), positive=(160, 10, 240, 150), small=[(250, 40, 300, 90)])
    tile = view_sheet([image], [views])[CAPTION : CAPTION + TILE, :TILE]
    for x0, y0, x1, y1, color in [(10, 10, 60, 60, ANCHOR), (80, 5, 120, 75, POSITIVE), (125, 20, 150, 45, SMALL)]:
        x, y = (x0 + x1) // 2, (y0 + y1) // 2
        for place in [(y, x0), (y, x1), (y0, x), (y1, x)]:
            assert has_colour(tile[place], color)
        assert tuple(tile[y, x]) == (128, 128, 128)
    assert tuple(tile[2, 2]) == (128, 128, 128)
    assert (tile[TILE // 2 :] == 255).all()  # the image keeps its aspect, the rest stays white


def test_a_box_around_the_whole_image_stays_in_the_tile():
    image = np.full((TILE, TILE, 3), 128, np.uint8)
    tile = view_sheet([image], [views_at((0, 0, TILE, TILE), (30, 30, 40, 40), [])])[CAPTION : CAPTION + TILE, :TILE]
    for place in [(50, 0), (0, 50), (50, TILE - 1), (TILE - 1, 50)]:
        assert has_colour(tile[place], ANCHOR)


def test_every_view_is_shown_in_a_frame_of_its_colour():
    image = np.zeros((20, 20, 3), np.uint8)
    small = [(1, 1, 5, 5), (6, 6, 9, 9)]
    sheet = view_sheet([image], [views_at((0, 0, 20, 20), (2, 2, 18, 18), small)])
    columns = [(11, ANCHOR), (22, POSITIVE), (33, SMALL), (33, SMALL)]
    for column, (level, color) in enumerate(columns, start=1):
        tile = sheet[CAPTION : CAPTION + TILE, column * STEP : column * STEP + TILE]
        assert (tile[4:-4, 4:-4] == level).all()
        assert tuple(tile[0, TILE // 2]) == tuple(tile[TILE // 2, -1]) == color
        assert (sheet[CAPTION : CAPTION + TILE, column * STEP + TILE : (column + 1) * STEP] == 255).all()


@pytest.mark.parametrize("size", [(1, 500), (500, 1), (1, 1), (3, 2), (1200, 30)])
def test_images_of_extreme_shape_can_be_shown(make_picture, size):
    image = make_picture(*size)
    assert view_sheet([image], [drawn_views(image, 2)]).shape == (CAPTION + STEP, 5 * STEP, 3)


@pytest.mark.parametrize("num_files, num_rows", [(3, 3), (12, 8)])
def test_the_sheet_of_a_configuration_shows_the_views_that_training_sees(tmp_path, write_pictures, num_files, num_rows):
    paths = write_pictures(tmp_path / "photos", num_files)
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.SEED, cfg.DATASETS.TRAIN = 5, (f"folder:{tmp_path / 'photos'}",)
    cfg.VIEWS.LARGE_SIZE, cfg.VIEWS.SMALL_SIZE = TILE, 20  # large views are shown pixel by pixel
    save_view_sheet(cfg, tmp_path / "views.png")
    sheet = np.asarray(Image.open(tmp_path / "views.png"))
    assert sheet.shape == (CAPTION + num_rows * STEP, 7 * STEP, 3)
    last = ViewMapper.from_config(cfg)(read_image(paths[-1]), 0, num_files - 1)
    shown = sheet[-STEP:-GAP, STEP : STEP + TILE]
    assert np.array_equal(shown[4:-4, 4:-4], last["anchor"][4:-4, 4:-4])


def test_unreadable_images_are_left_out_and_a_sheet_of_none_is_refused(tmp_path, write_pictures):
    paths = write_pictures(tmp_path / "photos", 3)
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.SEED, cfg.DATASETS.TRAIN = 5, (f"folder:{tmp_path / 'photos'}",)
    paths[1].write_bytes(b"not a picture")
    save_view_sheet(cfg, tmp_path / "views.png")
    assert np.asarray(Image.open(tmp_path / "views.png")).shape[0] == CAPTION + 2 * STEP
    for path in paths:
        path.write_bytes(b"not a picture")
    with pytest.raises(UserError, match="none of 3 images .* can be read; the first: .*000.png"):
        save_view_sheet(cfg, tmp_path / "views.png")
