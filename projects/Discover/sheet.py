"""A sheet of images with the boxes and masks that were found."""

from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as run_lengths

from projects.Pictures.tiles import SheetRow, evenly_spread, save_sheet
from projects.Predict.prediction_sheet import Detections, draw_objects
from revisit.data.images.reader import require_record

from detectron2.structures import BoxMode

IMAGES, COLUMNS = 12, 3
SHOWN = 8  # objects of an image


def save_found(path: Path, images: list[tuple[dict, dict[str, Any]]]) -> None:
    """Draw the best objects of images from all over the data set."""
    tiles = [_drawn(*images[index]) for index in evenly_spread(len(images), IMAGES)]
    rows = [tiles[start : start + COLUMNS] for start in range(0, len(tiles), COLUMNS)]
    blank = np.full_like(tiles[0], 255)
    filled = [row + [blank] * (min(COLUMNS, len(tiles)) - len(row)) for row in rows]
    save_sheet(path, [SheetRow(row) for row in filled], title="Found without labels", subtitle=f"the best {SHOWN}")


def _drawn(record: dict, line: dict[str, Any]) -> np.ndarray:
    objects = line["objects"][:SHOWN]
    boxes = np.array([each["bbox"] for each in objects]).reshape(-1, 4)
    corners = BoxMode.convert(boxes, BoxMode.XYWH_ABS, BoxMode.XYXY_ABS)
    masks = [run_lengths.decode(each["segmentation"]) for each in objects]
    scores = np.array([each["score"] for each in objects])
    relative = scores / max(line["objects"][0]["score"], 1e-12) if objects else scores
    detections = Detections(corners, np.zeros(len(objects), int), relative, masks or None)
    return draw_objects(require_record(record), detections, ["object"])
