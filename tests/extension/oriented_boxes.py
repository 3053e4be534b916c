"""DOTA's text files, ``dota:FOLDER_OF_IMAGES:FOLDER_OF_TEXTS``, whose oriented boxes become the rectangles around them;
a column ``filled`` of the records, and a check that reads it."""

import logging
from pathlib import Path

import numpy as np

from revisit.data.images.reader import size_if_known
from revisit.data.sources.coco_boxes import COCO_METADATA, load_box_files
from revisit.data.sources.inspection import LABEL_CHECK_REGISTRY
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.data.sources.records import Records
from revisit.errors import translated

from detectron2.config import CfgNode

LEAST_FILLED = 0.5
logger = logging.getLogger(f"projects.{__name__}")  # for log.txt


def load_dota(images: Path, labels: Path) -> LabelledSet:
    loaded = load_box_files(images, labels, ".txt", read_dota)
    for record in loaded.records:
        record["filled"] = [filled(box) for box in record["annotations"]]
    return loaded


def read_dota(file: Path, image: Path) -> tuple[dict[str, int], list[dict]]:
    with translated(f"reading {file}", content=True):
        lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
        return size_if_known(image), [rectangle(words) for words in lines if len(words) > 1]  # no imagesource:X


def rectangle(words: list[str]) -> dict:
    """Of x1 y1 ... x4 y4, px, a class and perhaps a difficulty."""
    corners = np.array(words[:8], float).reshape(4, 2)
    low, high = corners.min(axis=0), corners.max(axis=0)
    outline = corners.ravel().tolist()
    return {"name": words[8], "bbox": [*low.tolist(), *(high - low).tolist()], "segmentation": [outline]}


def filled(box: dict) -> float:
    """The oriented box's share of its rectangle; 0 where it lies out of the image."""
    x, y = np.reshape(box.get("segmentation", [[0] * 8])[0], (4, 2)).T
    return abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2 / (box["bbox"][2] * box["bbox"][3])


LABEL_LAYOUT_REGISTRY.register(LabelLayout("dota", "FOLDER_OF_IMAGES:FOLDER_OF_TEXTS", load_dota, COCO_METADATA))


@LABEL_CHECK_REGISTRY.register()
def filled_rectangles(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    shares = [share for record in records for share in record.get("filled", ())]
    if loose := sum(share < LEAST_FILLED for share in shares):
        logger.warning(f"{loose} of {len(shares)} rectangles of {name} are mostly empty: their objects lie askew")
