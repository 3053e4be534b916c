"""Pictures of objects: boxes in the tiles of views, and the gallery of nearest objects."""

import numpy as np
import torch
from tiny import OBJECTS, tiny_config, tiny_model

from projects.Objectives.object_pictures import _nearest_in_other_images, draw_objects, object_gallery
from projects.Pictures import pretraining_sheets
from projects.Pictures.tiles import TILE


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype(np.uint8)


def test_an_object_has_one_colour_in_both_views():
    views = {"anchor": noise(64, 64), "positive": noise(64, 64), "small": noise(2, 32, 32)}
    tiles = [np.zeros((TILE, TILE, 3), np.uint8) for _ in range(4)]
    boxes = np.array([[8, 8, 24, 24], [32, 32, 48, 48], [4, 36, 20, 60], [40, 4, 60, 20]], np.float32)
    queries = boxes * [[1], [np.nan], [0.5], [0.5]]
    annotations = {"anchor_objects": boxes, "positive_objects": queries}
    draw_objects(tiles, {**views, "annotations": annotations}, 2)
    cyan, purple = (0, 255, 255), (128, 0, 255)
    at = {0: ((20, 40), (255, 0, 0)), 1: ((20, 40), (255, 0, 0)), 2: ((120, 10), cyan), 3: ((30, 100), purple)}
    for n, (place, color) in at.items():  # 8 of 64 px is 20 of a tile's 160
        assert np.abs(tiles[n][place].astype(int) - color).max() < 32, n
    assert np.abs(tiles[0][120, 10].astype(int) - cyan).max() < 32 and not tiles[0][80:120, 80:120].any()


def test_the_gallery_shows_nearest_objects_of_other_images(toy_datasets, tmp_path, monkeypatch):
    cfg = tiny_config(*OBJECTS, "DATASETS.TRAIN", ("toy_scenes_train",))
    sheets = []
    monkeypatch.setattr(pretraining_sheets, "save_sheet", lambda path, rows, *_, **__: sheets.append(rows))
    object_gallery(cfg, tiny_model(*OBJECTS).eval(), tmp_path / "objects.png", num_images=3)
    (rows,) = sheets
    assert [len(row.tiles) for row in rows] == [9] * 10  # of 15 objects, of which 10 are another image's
    assert all(max(tile.shape) == 96 for row in rows for tile in row.tiles)


def test_objects_of_the_own_image_are_never_nearest():
    angles = torch.tensor([[0.0, 0.1], [0.5, 2.0], [0.3, 3.0]])  # of two objects in each of three images
    rows = torch.stack([angles.cos(), angles.sin()], dim=2)
    assert _nearest_in_other_images(rows, 0) == [4, 2, 3, 5]
