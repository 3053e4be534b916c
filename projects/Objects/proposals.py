"""Boxes of OBJECTS.PROPOSALS: a file in COCO's result format, such as another detector's output."""

import json
import logging
import math
from pathlib import Path

import numpy as np

from revisit.errors import expect, translated

logger = logging.getLogger(__name__)


def with_proposals(path: str, records: list[dict]) -> list[dict]:
    """The records with their ``proposal_boxes``, (n, 4) px, by ``image_id`` or the stem of the image's file.

    Raises:
        UserError: the file cannot be read, has an entry that is not a box, or none of any of the images.
    """
    boxes = _boxes_by_image(path)
    names = [_image_name(record.get("image_id", Path(record.get("file_name", "")).stem)) for record in records]
    count = sum(name in boxes for name in names)
    coverage = f"OBJECTS.PROPOSALS {path} has boxes of {count} of {len(records)} images, by their image_id"
    expect(count > 0, f"{coverage}: expected some")
    if count < len(records):
        logger.warning(f"{coverage}: those of the others are drawn")
    added = [{"proposal_boxes": np.array(boxes[name])} if name in boxes else {} for name in names]
    return [record | more for record, more in zip(records, added, strict=True)]


def _boxes_by_image(path: str) -> dict[str, list[list[float]]]:
    boxes: dict[str, list[list[float]]] = {}
    with translated(f"OBJECTS.PROPOSALS {path}", content=True):
        for index, entry in enumerate(json.loads(Path(path).read_text(encoding="utf-8"))):
            x, y, width, height = map(float, entry["bbox"])
            corner_x, corner_y = x + width, y + height
            if not (math.isfinite(x + y + width + height) and min(width, height, corner_x, corner_y) > 0):
                raise ValueError(f"[{index}] has the bbox {entry['bbox']}, expected [x, y, width, height] in px")
            boxes.setdefault(_image_name(entry["image_id"]), []).append([x, y, corner_x, corner_y])
    return boxes


def _image_name(image_id: object) -> str:
    """42, "42" and "000000000042", as COCO's files are called, are the same image."""
    return str(image_id).lstrip("0")
