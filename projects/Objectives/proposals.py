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
    copies = [dict(record) for record in records]
    covered = [record for record in copies if _name_of(record) in boxes]
    for record in covered:
        record["proposal_boxes"] = np.array(boxes[_name_of(record)])
    coverage = f"OBJECTS.PROPOSALS {path} has boxes of {len(covered)} of {len(records)} images, by their image_id"
    expect(len(covered) > 0, f"{coverage}: expected some")
    if len(covered) < len(records):
        logger.warning(f"{coverage}: those of the others are drawn")
    return copies


def _boxes_by_image(path: str) -> dict[str, list[list[float]]]:
    boxes: dict[str, list[list[float]]] = {}
    with translated(f"OBJECTS.PROPOSALS {path}", content=True):
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
        for index, entry in enumerate(entries):
            x, y, width, height = map(float, entry["bbox"])
            corner_x, corner_y = x + width, y + height
            is_finite = math.isfinite(x + y + width + height)
            if not is_finite or min(width, height, corner_x, corner_y) <= 0:
                raise ValueError(f"[{index}] has the bbox {entry['bbox']}, expected [x, y, width, height] in px")
            of_image = boxes.setdefault(_image_name(entry["image_id"]), [])
            of_image.append([x, y, corner_x, corner_y])
    return boxes


def _name_of(record: dict) -> str:
    """What an image is called in the file: by its id, or by its own file."""
    stem = Path(record.get("file_name", "")).stem
    return _image_name(record.get("image_id", stem))


def _image_name(image_id: object) -> str:
    """42, "42" and "000000000042", as COCO's files are called, are the same image."""
    return str(image_id).lstrip("0")
