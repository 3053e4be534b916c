"""Boxes of OBJECTS.PROPOSALS: a file in COCO's result format, such as another detector's output."""

import logging
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from revisit.boxes.boxes import corners_of, sides_of
from revisit.boxes.predictions_file import OF_PREDICTIONS, PREDICTIONS, evaluated_set
from revisit.errors import expect, first_few, translated
from revisit.files import read_json

logger = logging.getLogger(__name__)


def with_proposals(path: str, records: list[dict]) -> list[dict]:
    """The records with their ``proposal_boxes``, (n, 4) px, by ``image_id`` or the stem of the image's file.

    Raises:
        UserError: the file cannot be read, has an entry that is not a box, none of any of the images, or some by a name
            that several images have.
    """
    _warn_of_others(path, records)
    boxes = _boxes_by_image(path)
    counts = Counter(map(_name_of, records))
    shared = [name for name in boxes if counts[name] > 1]
    expect(
        not shared,
        f"OBJECTS.PROPOSALS {path} has boxes of {first_few(shared)}, as several images are called: expected an "
        "image_id, or a name of the file, that no other image has",
    )
    copies = [dict(record) for record in records]
    covered = [record for record in copies if _name_of(record) in boxes]
    for record in covered:
        record["proposal_boxes"] = np.array(boxes[_name_of(record)])
    coverage = f"OBJECTS.PROPOSALS {path} has boxes of {len(covered)} of {len(records)} images, by their image_id"
    expect(covered, f"{coverage}: expected some")
    if len(covered) < len(records):
        logger.warning(f"{coverage}: those of the others are drawn")
    return copies


def _warn_of_others(path: str, records: list[dict]) -> None:
    """Where an evaluation has written the boxes: whether it was of these images, so that ids mean the same ones."""
    about = Path(path).with_name(Path(OF_PREDICTIONS).name)
    is_of_evaluation = Path(path).name == Path(PREDICTIONS).name and about.is_file()
    if not is_of_evaluation:
        return
    with translated(f"reading {about}", content=True):
        scored = evaluated_set(about)
    if changed := scored.changes(records, labels=False):
        logger.warning(
            f"OBJECTS.PROPOSALS {path} are of the images of {scored.name}, which differed in {', '.join(changed)} "
            "when they were evaluated: expected the same image_id for the same image"
        )


def _boxes_by_image(path: str) -> dict[str, list[np.ndarray]]:
    boxes = defaultdict(list)
    with translated(f"OBJECTS.PROPOSALS {path}", content=True):
        entries = read_json(path)
        corners = corners_of(entries)
        positive = np.concatenate([sides_of(corners), corners[:, 2:]], axis=1)
        is_box = ((0 < positive) & (positive < np.inf)).all(axis=1)
        for index in np.flatnonzero(~is_box)[:1]:
            found = entries[index]["bbox"]
            raise ValueError(f"[{index}] has the bbox {found}, expected [x, y, width, height] in px")
        for entry, box in zip(entries, corners, strict=True):
            boxes[_image_name(entry["image_id"])].append(box)
    return boxes


def _name_of(record: dict) -> str:
    """What an image is called in the file: by its id, or by its own file."""
    stem = Path(record.get("file_name", "")).stem
    return _image_name(record.get("image_id", stem))


def _image_name(image_id: object) -> str:
    """42, "42" and "000000000042", as COCO's files are called, are the same image; 1_left and 01_left are two."""
    name = str(image_id)
    return name.lstrip("0") if name.isdecimal() else name
