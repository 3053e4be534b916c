"""A sheet of images with the boxes and masks that were found."""

from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as run_lengths

from projects.Pictures.tiles import SheetRow, evenly_spread, save_sheet
from projects.Predict.prediction_sheet import Detections, draw_objects
from revisit.data.images.reader import require_record

IMAGES, COLUMNS = 12, 3
SHOWN = 8  # objects of an image


def save_found(path: Path, found: list[tuple[dict, dict[str, Any]]]) -> None:
    """Draw the best objects of images from all over the data set."""
    tiles = [_drawn(*found[index]) for index in evenly_spread(len(found), IMAGES)]
    rows = [tiles[start : start + COLUMNS] for start in range(0, len(tiles), COLUMNS)]
    blank = np.full_like(tiles[0], 255)
    filled = [row + [blank] * (min(COLUMNS, len(tiles)) - len(row)) for row in rows]
    save_sheet(path, [SheetRow(row) for row in filled], title="Found without labels", subtitle=f"the best {SHOWN}")


def _drawn(record: dict, line: dict[str, Any]) -> np.ndarray:
    objects = line["objects"][:SHOWN]
    corners = np.array([_corners(each["bbox"]) for each in objects]).reshape(-1, 4)
    masks = [run_lengths.decode(each["segmentation"]) for each in objects]
    scores = np.array([each["score"] for each in objects])
    relative = scores / max(line["objects"][0]["score"], 1e-12) if objects else scores
    detections = Detections(corners, np.zeros(len(objects), int), relative, masks or None)
    return draw_objects(require_record(record), detections, ["object"])


def _corners(box: list[float]) -> list[float]:
    x, y, width, height = box
    return [x, y, x + width, y + height]
