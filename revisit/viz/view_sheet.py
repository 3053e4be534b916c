"""A picture of what the network sees: each image with its boxes, and the views cut from them."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import torch

from revisit.data.catalog import get_records
from revisit.data.mapper import ViewMapper, Views, read_record
from revisit.data.reader import UnreadableImageError
from revisit.errors import UserError

from detectron2.config import CfgNode

TILE = 160  # px
GAP = 6  # px
BATCH_ROWS = 32
ANCHOR, POSITIVE, SMALL = (230, 60, 60), (60, 170, 60), (50, 110, 230)  # RGB


def view_sheet(images: list[np.ndarray], views: list[Views]) -> np.ndarray:
    """One row an image: the boxes drawn on it, anchor, large positive, small positives; (H, W, 3) uint8 RGB."""
    rows = [_caption(len(views[0].get("small", ())))]
    for image, image_views in zip(images, views, strict=True):
        tiles = [
            _draw_boxes(image, image_views),
            _framed(image_views["anchor"], ANCHOR),
            _framed(image_views["positive"], POSITIVE),
            *(_framed(small, SMALL) for small in image_views.get("small", ())),
        ]
        rows.append(_spaced(tiles))
    return np.vstack(rows)


def save_view_sheet(cfg: CfgNode, path: Path, num_images: int = 8) -> None:
    """Write the sheet of the first epoch's views of images spread over DATASETS.TRAIN, leaving unreadable ones out.

    Raises:
        UserError: none of the chosen images can be read.
    """
    records = get_records(cfg.DATASETS.TRAIN[0])
    chosen = np.linspace(0, len(records) - 1, min(num_images, len(records))).astype(int)
    mapper = ViewMapper.from_config(cfg)
    images, views, errors = [], [], []
    for index in chosen:
        try:
            images.append(read_record(records[index]))
        except UnreadableImageError as error:
            errors.append(error)
            continue
        views.append(mapper(images[-1], 0, int(index)))
    if not images:
        raise UserError(f"none of {len(chosen)} images of {cfg.DATASETS.TRAIN[0]} can be read; the first: {errors[0]}")
    cv2.imwrite(str(path), cv2.cvtColor(view_sheet(images, views), cv2.COLOR_RGB2BGR))


def save_batch_sheets(batch: dict | list[dict], stem: Path) -> list[Path]:
    """Write a batch as STEM_1.png and so on, BATCH_ROWS images each.

    Of a ViewBatch a row shows the views of an image; of Detectron2's list of dicts, its (3, H, W) ``image`` alone.
    """
    if isinstance(batch, list):
        rows = [[_fitted(_pixels(record["image"]))] for record in batch]
    else:
        rows = [_view_tiles(batch, n) for n in range(len(batch["anchor"]))]
    paths = []
    for first in range(0, len(rows), BATCH_ROWS):
        paths.append(stem.with_name(f"{stem.name}_{1 + first // BATCH_ROWS}.png"))
        sheet = np.vstack([_spaced(tiles) for tiles in rows[first : first + BATCH_ROWS]])
        cv2.imwrite(str(paths[-1]), cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR))
    return paths


def _view_tiles(batch: dict, index: int) -> list[np.ndarray]:
    small = batch["small"][index] if "small" in batch else ()
    return [
        _framed(_pixels(batch["anchor"][index]), ANCHOR),
        _framed(_pixels(batch["positive"][index]), POSITIVE),
        *(_framed(_pixels(view), SMALL) for view in small),
    ]


def _pixels(image: torch.Tensor) -> np.ndarray:
    """(3, H, W) uint8 -> (H, W, 3)."""
    return np.ascontiguousarray(image.permute(1, 2, 0).cpu().numpy())


def _spaced(tiles: list[np.ndarray]) -> np.ndarray:
    return np.hstack([np.pad(tile, ((0, GAP), (0, GAP), (0, 0)), constant_values=255) for tile in tiles])


def _fitted(image: np.ndarray) -> np.ndarray:
    """An image in the corner of a tile, its aspect kept."""
    scale = TILE / max(image.shape[:2])
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    tile = np.full((TILE, TILE, 3), 255, np.uint8)
    tile[:height, :width] = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return tile


def _caption(num_small: int) -> np.ndarray:
    names = [("image", (0, 0, 0)), ("anchor", ANCHOR), ("positive", POSITIVE)] + [("small", SMALL)] * num_small
    strip = np.full((24, len(names) * (TILE + GAP), 3), 255, np.uint8)
    for column, (name, color) in enumerate(names):
        place = (column * (TILE + GAP) + 4, 17)
        cv2.putText(strip, name, place, cv2.FONT_HERSHEY_SIMPLEX, 0.5, color, 1, cv2.LINE_AA)
    return strip


def _framed(view: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    tile = cv2.resize(view, (TILE, TILE), interpolation=cv2.INTER_NEAREST)
    return cv2.rectangle(tile, (0, 0), (TILE - 1, TILE - 1), color, 2)


def _draw_boxes(image: np.ndarray, views: Views) -> np.ndarray:
    """The image in a tile, its aspect kept, with the boxes of its views."""
    scale = TILE / max(image.shape[:2])
    tile = _fitted(image)
    boxes = views["boxes"]
    colored = [(boxes.anchor, ANCHOR), (boxes.positive, POSITIVE), *((box, SMALL) for box in boxes.small)]
    for box, color in colored:
        x0, y0, x1, y1 = np.round(box * scale).astype(int).tolist()
        cv2.rectangle(tile, (x0, y0), (min(x1, TILE - 1), min(y1, TILE - 1)), color, 1, cv2.LINE_AA)
    return tile
