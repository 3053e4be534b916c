"""A sheet of images with the boxes and masks that were found."""

from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as run_lengths

from projects.Pictures.tiles import evenly_spread, gallery, save_sheet
from projects.Predict.prediction_sheet import Detections, draw_objects
from revisit.data.images.reader import require_record

from detectron2.structures import BoxMode

IMAGES, COLUMNS = 12, 3
SHOWN = 8  # objects of an image
TINY = 1e-12  # a score that is none


def save_found(path: Path, images: list[tuple[dict, dict[str, Any]]]) -> None:
    """Draw the best objects of images from all over the data set."""
    spread = evenly_spread(len(images), IMAGES)
    tiles = [_drawn(*images[index]) for index in spread]
    rows = gallery(tiles, (), min(COLUMNS, len(tiles)))
    save_sheet(path, rows, title="Found without labels", subtitle=f"the best {SHOWN}")


def _drawn(record: dict, line: dict[str, Any]) -> np.ndarray:
    objects = line["objects"][:SHOWN]
    boxes = np.array([each["bbox"] for each in objects]).reshape(-1, 4)
    corners = BoxMode.convert(boxes, BoxMode.XYWH_ABS, BoxMode.XYXY_ABS)
    masks = [run_lengths.decode(each["segmentation"]) for each in objects]
    scores = np.array([each["score"] for each in objects])
    relative = scores / scores.max(initial=TINY)
    classes = np.zeros(len(objects), int)
    detections = Detections(corners, classes, relative, masks or None)
    return draw_objects(require_record(record), detections, ["object"])
