"""What is to be embedded: the images of a data set, its boxes, or the boxes of tools/predict.py."""

import os
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from revisit.boxes.boxes import Boxes
from revisit.boxes.predictions_file import read_predictions, refused
from revisit.command.options import data_set
from revisit.data.sources.catalog import get_records
from revisit.data.sources.class_names import names_of
from revisit.data.sources.file_names import expect_file_names
from revisit.data.sources.records import keeping_all
from revisit.data.sources.subsets import objects_of
from revisit.errors import expect


class Places(NamedTuple):
    """The boxes of an image that get a row each; None: the whole image gets one."""

    record: dict
    boxes: np.ndarray | None  # (n, 4) float32, x0, y0, x1, y1 px
    classes: list[str]  # of each row, "" where there is none


def whole_images(name: str) -> list[Places]:
    """Every image of a data set, with its class where it has one."""
    records = _records(name)
    classes = names_of(name)
    return [Places(record, None, [_class_of(record, classes)]) for record in records]


def boxes_of(name: str, images: str = "") -> list[Places]:
    """The boxes of a data set, or of a predictions.json with its images.json, of those ``images`` alone if they are
    given; crowds are left out.

    Raises:
        UserError: a data set without boxes, no boxes at all, or other files.
    """
    is_file = name.endswith(".json") and ":" not in name  # no KIND:PLACES
    places = _predicted(Path(name)) if is_file else _labelled(data_set(name))
    if images:
        wanted = {os.path.realpath(record["file_name"]) for record in _records(images)}
        places = [each for each in places if os.path.realpath(each.record["file_name"]) in wanted]
    places = [each for each in places if len(each.boxes)]
    expect(bool(places), f"{name} has no boxes in {images or 'its images'}: expected at least one")
    return places


def _records(name: str) -> list[dict]:
    records = list(get_records(name))
    expect_file_names(records, name)
    return records


def _class_of(record: dict, classes: list[str]) -> str:
    if "label" not in record:
        return ""
    return classes[record["label"]] if classes else str(record["label"])


@keeping_all()
def _labelled(name: str) -> list[Places]:
    records = _records(name)
    expect(
        all("annotations" in record for record in records),
        f"--boxes {name} has no boxes: expected a data set with boxes, or a predictions.json",
    )
    classes = names_of(name)
    objects = list(map(objects_of, records))
    boxes = Boxes.of_annotations(list(chain.from_iterable(objects)), np.float32)
    of_images = np.split(np.arange(len(boxes)), np.cumsum(list(map(len, objects)))[:-1])
    return [
        Places(record, boxes.xyxy[places], [classes[number] for number in boxes.classes[places]])
        for record, places in zip(records, of_images, strict=True)
    ]


def _predicted(path: Path) -> list[Places]:
    """Of a file of COCO results and the images.json next to it, as tools/predict.py writes them."""
    with refused(f"--boxes {path}", "expected predictions.json and images.json of tools/predict.py in one folder"):
        of_files, names = read_predictions(path)
    return [
        Places({"file_name": file}, found.xyxy.astype(np.float32), [names[number] for number in found.classes])
        for file, found in of_files
    ]
