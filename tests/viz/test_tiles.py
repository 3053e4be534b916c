"""The composer of sheets: every tile pixel by pixel at its place, text inside the sheet, a legend of what occurs."""

import numpy as np
import pytest
from PIL import Image

from revisit.viz.tiles import GAP, LINE, MARGIN, PANEL, SheetRow, evenly_spread, fit, framed, save_sheet

RED, BLUE = (200, 30, 40), (20, 60, 220)


def saved(path, *arguments, **options):
    save_sheet(path, *arguments, **options)
    return np.asarray(Image.open(path).convert("RGB"))


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.mark.parametrize("texts", [0, 1, 3])
@pytest.mark.parametrize("captions", [(), ("of the row",), ("a", "b", "c")])
def test_every_tile_stands_pixel_by_pixel_in_aligned_columns(tmp_path, texts, captions):
    shapes = [(200, 100), (60, 160), (160, 160)]
    rows = [SheetRow([noise(*shape, seed) for seed in range(3)], captions) for shape in shapes]
    headers, title, subtitle = (text if n < texts else "" for n, text in enumerate(("abc", "a title", "more")))
    sheet = saved(tmp_path / "s.png", rows, headers, title=title, subtitle=subtitle)
    assert sheet.shape[1] == 2 * MARGIN + 3 * 160 + 2 * GAP
    for n, (row, (height, width)) in enumerate(zip(rows, shapes, strict=True)):
        top = MARGIN + LINE * texts + n * (200 + GAP + LINE * bool(captions))
        for column, tile in enumerate(row.tiles):
            left = MARGIN + column * (160 + GAP) + (160 - width) // 2
            assert np.array_equal(sheet[top : top + height, left : left + width], tile)
    assert (sheet[-8:] == 255).all()


def test_one_tile_is_a_sheet(tmp_path):
    sheet = saved(tmp_path / "s.png", [SheetRow([noise(50, 40)])])
    assert np.array_equal(sheet[MARGIN : MARGIN + 50, MARGIN : MARGIN + 40], noise(50, 40))


def test_text_stays_inside_the_sheet(tmp_path):
    legend = {n: ("W" * 90, (9, 9, 9)) for n in range(5)}
    row = SheetRow([noise(90, 120)] * 2, ["folder/" * 30 + "image.jpg"], legend)
    sheet = saved(tmp_path / "s.png", [row], ["W" * 60] * 2, title="W" * 90, subtitle="weights/" * 30)
    for border in (sheet[:8], sheet[-8:], sheet[:, :8], sheet[:, -8:]):
        assert (border == 255).all()


def test_the_legend_shows_the_colours_of_all_rows_once(tmp_path):
    grey = np.full((40, 300, 3), 128, np.uint8)
    rows = [SheetRow([grey], legend={1: ("cat", RED)}), SheetRow([grey], legend={1: ("cat", RED), 4: ("dog", BLUE)})]
    found = [(saved(tmp_path / "s.png", rows) == color).all(axis=-1).sum() for color in (RED, BLUE)]
    assert found[0] == pytest.approx(found[1], rel=0.1) and found[0] > 100


def test_headers_have_their_colours(tmp_path):
    rows = [SheetRow([np.full((40, 80, 3), 128, np.uint8)] * 2)]
    sheet = saved(tmp_path / "s.png", rows, ["aaa", "bbb"], header_colors=[RED, BLUE])
    left, right = sheet[: MARGIN + LINE, : MARGIN + 80], sheet[: MARGIN + LINE, MARGIN + 80 + GAP :]
    for part, own, other in ((left, RED, BLUE), (right, BLUE, RED)):
        to_own, to_other = (np.abs(part.astype(int) - color).max(axis=-1).min() for color in (own, other))
        assert to_own < 60 < to_other  # letters are antialiased


def test_a_row_of_depth_has_a_scale_beside_it(tmp_path):
    grey = np.full((90, 90, 3), 128, np.uint8)
    sheet = saved(tmp_path / "s.png", [SheetRow([grey], depth_range=(1, 5)), SheetRow([grey])])
    bar = sheet[:, MARGIN + 90 + GAP + 7]
    assert bar[MARGIN + 3].tolist() == pytest.approx([240, 249, 33], abs=30)  # plasma's yellow: far
    assert bar[MARGIN + 86].tolist() == pytest.approx([13, 8, 135], abs=30)  # plasma's blue: near
    assert (bar[MARGIN + 90 + GAP :] == 255).all()


@pytest.mark.parametrize("size", [(1, 500), (500, 1), (1, 1), (3, 2), (1200, 30)])
def test_images_of_extreme_shape_are_fitted_framed_and_saved_below_wider_text(tmp_path, size):
    image = noise(*size)
    assert max(fit(image).shape) == PANEL and max(framed(image, RED, 96).shape) == 96
    row = SheetRow([fit(image), framed(image, RED)], ["a caption"], {1: ("cat", RED)}, (0, 1))
    assert saved(tmp_path / "s.png", [row], ["i", "j"], title="a title").any()


def test_a_frame_covers_the_border_and_leaves_the_rest():
    tile = framed(np.full((50, 80, 3), 7, np.uint8), BLUE, 160)
    assert tile.shape == (100, 160, 3)
    for border in (tile[0], tile[-1], tile[:, 0], tile[:, -1]):
        assert (border == BLUE).all()
    assert (tile[4:-4, 4:-4] == 7).all()


@pytest.mark.parametrize(
    ("total", "count", "indices"), [(15, 3, [0, 7, 14]), (3, 9, [0, 1, 2]), (1, 4, [0]), (0, 2, [])]
)
def test_indices_are_spread_from_the_first_to_the_last(total, count, indices):
    assert evenly_spread(total, count) == indices
