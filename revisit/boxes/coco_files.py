"""Objects of images as files: a COCO data set, and COCO results for OBJECTS.PROPOSALS."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from revisit.data.images.reader import read_size
from revisit.data.sources.coco_truth import mask_area
from revisit.data.sources.records import WITHOUT_LABELS
from revisit.files import write_correctable, write_whole

CATEGORY = {"id": 1, "name": "object"}
Images = Sequence[Mapping[str, Any]]  # records with height and width, px, and objects in COCO's format


def size_of(record: Mapping[str, Any]) -> tuple[int, int]:
    """Height and width of a record's image, px, from its file where the record does not have them."""
    size = record if "height" in record and "width" in record else read_size(record["file_name"])
    return size["height"], size["width"]


def folder_of(images: Images, data_set: str = "") -> str:
    """The folder that has all images: one that the name of a data set names, or else the deepest, without links.

    Args:
        data_set: such as ``folder:/data/photos``.
    """
    folders = [os.path.dirname(os.path.abspath(image["file_name"])) for image in images]
    deepest = os.path.commonpath(folders)
    named = [part for part in data_set.split(":") if part and Path(deepest).is_relative_to(os.path.abspath(part))]
    return named[0] if named else deepest


def write_data_set(
    path: Path,
    images: Images,
    classes: Sequence[str] = (CATEGORY["name"],),
    *,
    folder: str = "",
    info: Mapping[str, Any] | None = None,
) -> int:
    """Write images and annotations with masks in run lengths, and areas; returns how many objects there are.

    Objects with a ``category_id`` count ``classes`` from 1. Names of files are those below ``folder``, as annotation
    tools and ``coco:FOLDER:FILE`` look them up, or without it those of the records. ``info`` is about all of them, and
    comes first in the file.

    Raises UserError where what is there has been corrected since it was written.
    """
    pictures, annotations = [], []
    for number, image in enumerate(images, start=1):
        size = {"height": image["height"], "width": image["width"]}
        name = os.path.relpath(image["file_name"], folder) if folder else image["file_name"]
        unlabelled = {key: image[key] for key in (WITHOUT_LABELS,) if key in image}
        pictures.append({"id": number, "file_name": name, **size, **unlabelled})
        for each in image["objects"]:
            identity = {"id": len(annotations) + 1, "image_id": number}
            usual = {"category_id": 1, "iscrowd": 0, "area": _area(each, **size)}
            annotations.append({**identity, **usual, **each, **identity})
    categories = [{"id": number, "name": name} for number, name in enumerate(classes, start=1)]
    content = {"images": pictures, "annotations": annotations, "categories": categories}
    write_correctable(path, json.dumps(({"info": info} if info else {}) | content))
    return len(annotations)


def _area(box: Mapping[str, Any], height: int, width: int) -> float:
    """px^2 of an object's mask, or of the box where there is none, in an image of this size."""
    if "segmentation" in box:
        return mask_area(box["segmentation"], height, width)
    return box["bbox"][2] * box["bbox"][3]


def write_results(path: Path, images: Images) -> None:
    """Write boxes and scores by image_id, or by the stem of the file's name, as OBJECTS.PROPOSALS reads them: of images
    without ``same_names``."""
    results = [
        {"image_id": name, "category_id": 1, "bbox": each["bbox"], "score": each["score"]}
        for name, image in zip(_names(images), images, strict=True)
        for each in image["objects"]
    ]
    write_whole(path, json.dumps(results))


def same_names(images: Images) -> str:
    """In words, how many names two images would have in results; "" where each has one of its own."""
    twice = [name for name, count in Counter(_names(images)).items() if count > 1]
    return f"{len(twice)} names of files stand for two images each, such as {min(twice)}" if twice else ""


def _names(images: Images) -> list[str]:
    return [str(image.get("image_id", Path(image["file_name"]).stem)) for image in images]
