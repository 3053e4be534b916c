"""The composer of sheets, pixel by pixel; the sheets of views and of neighbours, and curves, that are made with it."""

import json

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from tiny import random_views, tiny_config, tiny_model
from trees import refused

from projects.Pictures import pretraining_sheets
from projects.Pictures.curves import plot_curves, saved_plot
from projects.Pictures.pretraining_sheets import (
    ANCHOR,
    GREEN,
    POSITIVE,
    RED,
    SMALL,
    draw_boxes,
    neighbor_gallery,
    view_tiles,
)
from projects.Pictures.tiles import GAP, LINE, MARGIN, PANEL, TILE, SheetRow, fit, framed, save_sheet
from revisit.checkpoint.metrics_file import read_metrics
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import read_image
from revisit.data.views.crops import CropBoxes
from revisit.data.views.mapper import ViewMapper, Views
from revisit.evaluation.features import Features, extractor

from detectron2.config import CfgNode

BLUE = (20, 60, 220)


def saved(path, *arguments, **options):
    save_sheet(path, *arguments, **options)
    return np.asarray(Image.open(path).convert("RGB"))


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.mark.parametrize("texts", [0, 1, 3])
@pytest.mark.parametrize("captions", [(), ("of the row",), ("a", "b", "c")])
def test_tiles_keep_their_pixels_in_aligned_columns(tmp_path, texts, captions):
    shapes = [(200, 100), (60, 160), (160, 160)]
    rows = [SheetRow([noise(*shape, seed) for seed in range(3)], captions) for shape in shapes]
    headers, title, subtitle = (text if n < texts else "" for n, text in enumerate(("abc", "a title", "more")))
    sheet = saved(tmp_path / "s.png", rows, headers, title=title, subtitle=subtitle)
    assert sheet.shape[1] == 2 * MARGIN + 3 * 160 + 2 * GAP
    top = MARGIN + LINE * texts
    for row, (height, width) in zip(rows, shapes, strict=True):
        for column, tile in enumerate(row.tiles):
            left = MARGIN + column * (160 + GAP) + (160 - width) // 2
            assert np.array_equal(sheet[top : top + height, left : left + width], tile)
        top += height + GAP + LINE * bool(captions)
    assert sheet.shape[0] == top - GAP + MARGIN and (sheet[-8:] == 255).all()


def test_text_stays_inside_the_sheet(tmp_path):
    legend = {n: ("folder/" * 20, (9, 9, 9)) for n in range(5)}
    row = SheetRow([noise(90, 120)] * 2, ["folder/" * 30 + "image.jpg"], legend)
    sheet = saved(tmp_path / "s.png", [row], ["folder/" * 20] * 2, title="folder/" * 20, subtitle="weights/" * 30)
    for border in (sheet[:8], sheet[-8:], sheet[:, :8], sheet[:, -8:]):
        assert (border == 255).all()


def test_a_sheet_shows_the_place_of_a_url_alone(tmp_path):
    """Weights, data sets and images may be named by what opens them."""
    sheets = []
    for opened_by in ("", "?X-Amz-Signature=SECRET"):
        place = f"https://host/a.pth{opened_by}"
        row = SheetRow([noise(90, 400)], [place])
        sheets.append(saved(tmp_path / "s.png", [row], title=place, subtitle=f"weights {place}"))
    assert np.array_equal(*sheets)


def test_names_of_wide_letters_have_room_in_the_legend(tmp_path):
    """Twelve px each, as those of Chinese: of a name that lacks room the beginning is not shown."""
    rows = [SheetRow([np.full((60, 300, 3), 128, np.uint8)], legend={1: ("W" * 14, RED), 2: ("X\n" + "W" * 12, BLUE)})]
    sheet, alone = (saved(tmp_path / "s.png", rows[:1]), saved(tmp_path / "a.png", [rows[0]._replace(legend={})]))
    assert len(sheet) == len(alone) + 2 * LINE
    dark = (sheet[len(alone) - MARGIN + GAP :, MARGIN + 28 :] < 128).all(axis=2)
    assert np.ptp(np.flatnonzero(dark[:LINE].any(axis=0))) > 14 * 11


def test_the_legend_shows_each_colour_once(tmp_path):
    grey = np.full((40, 300, 3), 128, np.uint8)
    rows = [SheetRow([grey], legend={1: ("cat", RED)}), SheetRow([grey], legend={1: ("cat", RED), 4: ("dog", BLUE)})]
    counts = [(saved(tmp_path / "s.png", rows) == color).all(axis=-1).sum() for color in (RED, BLUE)]
    assert counts[0] == pytest.approx(counts[1], rel=0.1) and counts[0] > 100


def test_a_depth_row_has_a_scale(tmp_path):
    grey = np.full((90, 90, 3), 128, np.uint8)
    sheet = saved(tmp_path / "s.png", [SheetRow([grey], depth_range=(1, 5)), SheetRow([grey])])
    bar = sheet[:, MARGIN + 90 + GAP + 7]
    assert bar[MARGIN + 3].tolist() == pytest.approx([240, 249, 33], abs=30)  # plasma's yellow: far
    assert bar[MARGIN + 86].tolist() == pytest.approx([13, 8, 135], abs=30)  # plasma's blue: near
    assert (bar[MARGIN + 90 + GAP :] == 255).all()


@pytest.mark.parametrize("size", [(1, 500), (500, 1), (1, 1), (3, 2), (1200, 30)])
def test_images_of_extreme_shape_are_fitted_and_framed(tmp_path, size):
    image = noise(*size)
    assert max(fit(image).shape) == PANEL and max(framed(image, RED, 96).shape) == 96
    row = SheetRow([fit(image), framed(image, RED)], ["a caption"], {1: ("cat", RED)}, (0, 1))
    assert saved(tmp_path / "s.png", [row], ["i", "j"], title="a title").any()


TEST = ("DATASETS.TEST", ("toy_objects_train",), "KNN_EVAL.BANK", "toy_objects_train", "KNN_EVAL.IMAGE_SIZE", 48)


def boxes(anchor, positive, *small):
    return Views(boxes=CropBoxes(np.array(anchor), np.array(positive), np.array(small).reshape(-1, 4), 0))


def has_colour(tile, color, *places):
    """Lines are antialiased, so a little of the image shines through."""
    return all(np.abs(tile[place].astype(int) - color).max() <= 20 for place in places)


def test_boxes_are_drawn_in_place_and_colour():
    image = np.full((TILE, 2 * TILE, 3), 128, np.uint8)  # twice the size of a tile, so that places halve
    tile = draw_boxes(image, boxes((20, 20, 120, 120), (160, 10, 240, 150), (250, 40, 300, 90)))  # none touches another
    assert tile.shape == (TILE // 2, TILE, 3)
    for x0, y0, x1, y1, color in [(10, 10, 60, 60, ANCHOR), (80, 5, 120, 75, POSITIVE), (125, 20, 150, 45, SMALL)]:
        x, y = (x0 + x1) // 2, (y0 + y1) // 2
        assert has_colour(tile, color, (y, x0), (y, x1), (y0, x), (y1, x))
        assert tuple(tile[y, x]) == (128, 128, 128)
    assert tuple(tile[2, 2]) == (128, 128, 128)
    tile = draw_boxes(image[:, :TILE], boxes((0, 0, TILE, TILE), (30, 30, 40, 40)))  # a box around the whole image
    assert has_colour(tile, ANCHOR, (50, 0), (0, 50), (50, TILE - 1), (TILE - 1, 50))


def test_each_view_has_a_frame_of_its_colour():
    views = Views(anchor=np.full((8, 8, 3), 11, np.uint8), positive=np.full((8, 8, 3), 22, np.uint8))
    assert len(view_tiles(views, PHOTOGRAPHS)) == 2
    views["small"] = np.full((2, 4, 4, 3), 33, np.uint8)
    columns = [(11, ANCHOR), (22, POSITIVE), (33, SMALL), (33, SMALL)]
    for tile, (level, color) in zip(view_tiles(views, PHOTOGRAPHS), columns, strict=True):
        assert tile.shape == (TILE, TILE, 3) and (tile[4:-4, 4:-4] == level).all()
        assert tuple(tile[0, TILE // 2]) == tuple(tile[TILE // 2, -1]) == color


def config(folder) -> CfgNode:
    """Large views are shown pixel by pixel."""
    return tiny_config("DATASETS.TRAIN", (f"folder:{folder}",), "VIEWS.LARGE_SIZE", TILE)


@pytest.fixture
def sheets(monkeypatch) -> list[list]:
    """The rows of each sheet that is saved."""
    found, save = [], pretraining_sheets.save_sheet
    monkeypatch.setattr(pretraining_sheets, "save_sheet", lambda path, rows, *more, **options: (
        found.append(rows), save(path, rows, *more, **options)))  # fmt: skip
    return found


@pytest.mark.parametrize("num_files", [3, 12])
def test_the_view_sheet_shows_what_training_sees(tmp_path, write_pictures, sheets, num_files):
    paths = write_pictures(tmp_path / "photos", num_files)
    cfg = config(tmp_path / "photos")
    pretraining_sheets.save_view_sheet(cfg, tmp_path / "views.png")
    (rows,) = sheets
    assert [len(row.tiles) for row in rows] == [7] * min(num_files, 8)
    last = ViewMapper.from_config(cfg)(read_image(paths[-1]), 0, num_files - 1)
    assert np.array_equal(rows[-1].tiles[1][4:-4, 4:-4], last["anchor"][4:-4, 4:-4])
    assert cv2.imread(str(tmp_path / "views.png")).shape[1] > 7 * TILE


def test_the_view_sheet_is_of_all_data_sets_with_the_views_of_the_run(tmp_path, write_pictures, sheets):
    paths = [write_pictures(tmp_path / name, count)[-1] for name, count in (("photos", 9), ("more", 3))]
    cfg = config(tmp_path / "photos")
    cfg.DATASETS.TRAIN = (*cfg.DATASETS.TRAIN, f"folder:{tmp_path / 'more'}")
    pretraining_sheets.save_view_sheet(cfg, tmp_path / "views.png")
    (rows,) = sheets
    last = ViewMapper.from_config(cfg)(read_image(paths[-1]), 0, 11)
    assert len(rows) == 8 and np.array_equal(rows[-1].tiles[1][4:-4, 4:-4], last["anchor"][4:-4, 4:-4])


def test_a_sheet_without_readable_images_is_refused(tmp_path, write_pictures, sheets):
    paths = write_pictures(tmp_path / "photos", 3)
    paths[1].write_bytes(b"not a picture")
    pretraining_sheets.save_view_sheet(config(tmp_path / "photos"), tmp_path / "views.png")
    assert len(sheets[0]) == 2
    for path in paths:
        path.write_bytes(b"not a picture")
    refused("000.png", pretraining_sheets.save_view_sheet, config(tmp_path / "photos"), tmp_path / "views.png")


def test_a_batch_is_written_in_pages(tmp_path, sheets, monkeypatch):
    monkeypatch.setattr(pretraining_sheets, "BATCH_ROWS", 2)
    views = random_views(3) | {"num_fallbacks": torch.zeros(3)}
    records = [{"image": views["anchor"][0]}, {"image": views["small"][0, 0]}]
    paths = [tmp_path / "b_1.png", tmp_path / "b_2.png"]
    assert pretraining_sheets.save_batch_sheets(views, tmp_path / "b", PHOTOGRAPHS) == paths
    assert [[len(row.tiles) for row in rows] for rows in sheets] == [[6, 6], [6]]
    pretraining_sheets.save_batch_sheets(records, tmp_path / "detector", PHOTOGRAPHS)
    assert [len(row.tiles) for row in sheets[2]] == [1, 1] and (tmp_path / "detector_1.png").is_file()


def test_sheets_of_channels_show_red_green_and_blue(tmp_path, sheets, monkeypatch):
    image = np.broadcast_to(np.array([9, 30, 60, 120, 250], np.uint8), (40, 50, 5)).copy()
    monkeypatch.setattr(pretraining_sheets, "get_records", lambda name: [{"image": image}] * 3)
    cfg = config(tmp_path)
    cfg.VIEWS.POLICY, cfg.INPUT.CHANNELS = "channels", "nir blue green red swir"
    pretraining_sheets.save_view_sheet(cfg, tmp_path / "views.png")
    mapper = ViewMapper.from_config(cfg)
    views = [mapper(image, 0, index) for index in range(3)]
    batch = {name: torch.from_numpy(np.stack([each[name] for each in views])).movedim(-1, -3) for name in mapper.shapes}
    pretraining_sheets.save_batch_sheets(batch, tmp_path / "batch", pixel_format(cfg))
    assert (sheets[0][0].tiles[0][20, 5] == (120, 60, 30)).all()
    for (row, *_), place in zip(sheets, (1, 0), strict=True):
        assert (row.tiles[place][50, 60] == views[0]["anchor"][50, 60, [3, 2, 1]]).all()


@pytest.fixture
def features(toy_datasets) -> Features:
    return extractor(tiny_config(*TEST), tiny_model())("toy_objects_train")


def test_the_gallery_finds_the_query_and_frames_labels(features, tmp_path, monkeypatch):
    """The queries are taken from the bank, so each one's nearest neighbour is itself."""
    rows = []
    monkeypatch.setattr(pretraining_sheets, "save_sheet", lambda path, found, *texts, **more: rows.extend(found))
    neighbor_gallery(tiny_config(*TEST), features, features, tmp_path, num_queries=3)
    assert [len(row.tiles) for row in rows] == [9] * 3
    for row, query in zip(rows, np.linspace(0, len(features.rows) - 1, 3).astype(int), strict=True):
        first, nearest, *_ = row.tiles
        assert np.array_equal(first[4:-4, 4:-4], nearest[4:-4, 4:-4])
        order = (features.rows @ features.rows[query]).argsort(descending=True)[:8]
        frames = [GREEN if features.labels[n] == features.labels[query] else RED for n in order]
        assert [tuple(tile[0, 0].tolist()) for tile in row.tiles] == [(0, 0, 0), *frames]


def test_an_unwritable_gallery_is_only_logged(features, tmp_path, caplog):
    neighbor_gallery(tiny_config(*TEST), features, features, tmp_path / "nowhere/g.png", num_queries=1)
    assert "nowhere/g.png cannot be written" in caplog.text
    (tmp_path / "nowhere").mkdir()
    neighbor_gallery(tiny_config(*TEST), features, features, tmp_path / "nowhere/g.png", num_queries=1)
    assert cv2.imread(str(tmp_path / "nowhere/g.png")).std() > 10


@pytest.mark.parametrize("torn", ['{"iteration": 3, "loss', '{"iteration": 1, "loss_inst": 4.0}'])
def test_metrics_skip_torn_lines_and_repeated_iterations(tmp_path, torn):
    lines = [json.dumps({"iteration": i, "loss_inst": value}) for i, value in ((0, 5.0), (1, 4.5), (2, 3.0))]
    (tmp_path / "metrics.json").write_text("\n".join([*lines, torn]))
    expected = 4.0 if torn.endswith("}") else 4.5
    assert read_metrics(tmp_path / "metrics.json") == {"loss_inst": [(0, 5.0), (1, expected), (2, 3.0)]}


def test_metrics_of_steps_that_a_resumed_run_has_not_taken_again_are_left_out(tmp_path):
    """Scores of earlier iterations, which a writer may add later, step back nothing."""
    training = [{"iteration": n, "total_loss": loss} for n, loss in ((19, 5.0), (39, 9.0), (59, 99.0), (19, 4.0))]
    scores = [{"iteration": n, "knn_top1": score} for n, score in ((9, 1.0), (29, 2.0), (29, 3.0))]
    lines = [*training[:2], *scores[:2], *training[2:], {"iteration": 39, "total_loss": 3.0}, scores[2]]
    (tmp_path / "metrics.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    expected = {"total_loss": [(19, 4.0), (39, 3.0)], "knn_top1": [(9, 1.0), (29, 3.0)]}
    assert read_metrics(tmp_path / "metrics.json") == expected
    (tmp_path / "metrics.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines[:-2]))
    expected = {"total_loss": [(19, 4.0)], "knn_top1": [(9, 1.0)]}
    assert read_metrics(tmp_path / "metrics.json") == expected


def test_names_in_a_plot_are_no_formulas(tmp_path):
    name = "coin_$1_$2"
    with saved_plot(tmp_path / "plot.png", title=name) as (axis,):
        axis.plot([1, 2], label=name)
        axis.set(xlabel=name, ylabel=name, title=name, xscale="log")
    assert cv2.imread(str(tmp_path / "plot.png")).std() > 10


def test_curves_have_no_empty_panels(tmp_path):
    pictures, more = [], {"contrast_top1": 3.0, "lr": 0.1}
    two = {"loss_inst": 5.0, "knn_top1": 12.0}
    for values in (two, {"something_else": 1.0}, two | more):
        (tmp_path / "metrics.json").write_text(json.dumps({"iteration": 0, **values}))
        plot_curves(tmp_path / "metrics.json", tmp_path / "curves.png")
        pictures.append(cv2.imread(str(tmp_path / "curves.png")))
    assert pictures[0].shape == pictures[1].shape and not np.array_equal(*pictures[:2])
    assert pictures[2].shape[0] == 2 * pictures[0].shape[0]
