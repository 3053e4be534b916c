"""A picture of what the network sees: each image with its boxes, and the views cut from them."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from revisit.data.catalog import get_records
from revisit.data.images import UnreadableImageError
from revisit.data.mapper import ViewMapper, Views, read_record
from revisit.errors import UserError

from detectron2.config import CfgNode

TILE = 160  # px
GAP = 6  # px
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
        rows.append(np.hstack([np.pad(tile, ((0, GAP), (0, GAP), (0, 0)), constant_values=255) for tile in tiles]))
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
    height, width = image.shape[:2]
    scale = TILE / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    resized = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    tile = np.full((TILE, TILE, 3), 255, np.uint8)
    tile[: resized.shape[0], : resized.shape[1]] = resized
    boxes = views["boxes"]
    colored = [(boxes.anchor, ANCHOR), (boxes.positive, POSITIVE), *((box, SMALL) for box in boxes.small)]
    for box, color in colored:
        x0, y0, x1, y1 = np.round(box * scale).astype(int).tolist()
        cv2.rectangle(tile, (x0, y0), (min(x1, TILE - 1), min(y1, TILE - 1)), color, 1, cv2.LINE_AA)
    return tile
