"""Boxes and masks in COCO's format, the one form that all layouts of boxes take: checked, completed, and loaded.

A file that is read, and what ``box_layouts`` makes of other layouts, is a dict with the lists ``categories``,
``images`` and ``annotations`` (https://cocodataset.org/#format-data).
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from revisit.data.image_folders import existing
from revisit.data.reader import read_size
from revisit.data.records import Records
from revisit.errors import UserError, translated

from detectron2.data.datasets.coco import load_coco_json

FAR = 2**20  # px, beyond any image; pycocotools draws an outline step by step, and dies of one without an end


def load_coco(images: Path, annotations: Path, name: str) -> Records:
    """Boxes and masks of a file in COCO's format; its classes become those of the data set ``name``.

    Raises:
        UserError: the file is none of COCO's, or an image that it names is not there.
    """
    with translated(f"reading {annotations}"):
        content = json.loads(annotations.read_text(encoding="utf-8"))
    check_coco(content, str(annotations))
    existing([{"file_name": os.path.join(images, image["file_name"])} for image in content["images"]])
    if _add_sizes(content, images):
        return load_coco_dict(content, images, name, str(annotations))
    return load_coco_json(str(annotations), str(images), name)


def load_coco_dict(content: dict, images: Path, name: str, source: str) -> Records:
    """Detectron2's records of a dict in COCO's format, by Detectron2's own loader, sorted by the images' ids.

    Images' file names are seen from the folder ``images``; sizes that the dict lacks are added to it. The data set
    ``name`` gets the classes; ``source`` is what the dict was made of, for messages. Raises UserError: see check_coco.
    """
    check_coco(content, source)
    _add_sizes(content, images)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "coco.json"
        file.write_text(json.dumps(content))
        return load_coco_json(str(file), str(images), name)


def coco_metadata(images: Path, annotations: Path) -> dict:
    """What Detectron2's evaluator of COCO has to know."""
    return {"evaluator_type": "coco", "image_root": str(images), "json_file": str(annotations)}


def complete_coco(content: dict, images: Path) -> None:
    """Add in place what pycocotools takes for granted when it scores, and leave out masks that it cannot draw.

    That is the size of an image, ``area`` and ``iscrowd`` of an annotation, outlines of at least three points, and ids
    from 1 on, because a hit of id 0 counts as none.
    """
    _add_sizes(content, images)
    annotations, content["annotations"] = content["annotations"], []
    for number, annotation in enumerate(annotations, start=1):
        mask = annotation.get("segmentation")
        if isinstance(mask, list) and mask:
            annotation["segmentation"] = _outlines(mask)
            if not annotation["segmentation"]:  # Detectron2's loader leaves it out too
                continue
        if type(annotation.get("area")) not in (int, float):
            annotation["area"] = annotation["bbox"][2] * annotation["bbox"][3]
        content["annotations"].append({**annotation, "id": number, "iscrowd": annotation.get("iscrowd") or 0})


def _add_sizes(content: dict, images: Path) -> bool:
    """Of images that have none, those of their files; whether there are such."""
    lacking = [image for image in content["images"] if not (image.get("width") and image.get("height"))]
    for image in lacking:
        image.update(read_size(os.path.join(images, image["file_name"])))
    return bool(lacking)


def _outlines(polygons: list[list[float]]) -> list[list[float]]:
    """Those of three points and more, as Detectron2's loader takes them."""
    return [points for points in polygons if len(points) % 2 == 0 and len(points) >= 6]


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) in (int, float) for value in values)


def _is_mask(mask: Any) -> bool:
    """None, polygons, or run lengths of an image."""
    if not isinstance(mask, dict):
        polygons = mask or []
        return isinstance(polygons, list) and all(_are_numbers(p) and all(abs(v) < FAR for v in p) for p in polygons)
    (height, width), counts = mask["size"], mask["counts"]
    if not (type(height) is type(width) is int and 0 < height < 2**16 and 0 < width < 2**16):
        return False
    if isinstance(counts, list):
        return all(type(n) is int and n >= 0 for n in counts) and sum(counts) == height * width
    return isinstance(counts, str)  # compressed


def check_coco(content: Any, source: str) -> None:
    """Check in a dict in COCO's format what would go wrong without a word, or with the whole process.

    Raises:
        UserError: what is wrong; the message names ``source`` and the entry.
    """
    if not (isinstance(content, dict) and content.get("images") and content.get("categories")):
        message = f"{source} is not in COCO's format, or shows nothing"
        raise UserError(f"{message}: expected an object with the lists categories, images and annotations")
    annotations = content.get("annotations", [])
    with translated(source):
        ids = {part: {entry["id"] for entry in content[part]} for part in ("categories", "images")}
    for part, its_ids in ids.items():
        if len(its_ids) < len(content[part]):
            raise UserError(f"{source}: two of {part} have the same id: expected an id of its own for each")
    for place, annotation in enumerate(annotations):
        with translated(f"{source}, annotations[{place}]"):
            if annotation["category_id"] not in ids["categories"]:
                raise ValueError(f"category_id {annotation['category_id']!r}, expected the id of one of categories")
            if not (_are_numbers(annotation["bbox"]) and len(annotation["bbox"]) == 4):
                raise ValueError(f"bbox {annotation['bbox']}, expected [x, y, width, height] in px")
            if not _is_mask(annotation.get("segmentation")):
                raise ValueError("segmentation: expected lists of x, y, x, y, ... in px, or run lengths of an image")
    if annotations and not any(annotation["image_id"] in ids["images"] for annotation in annotations):
        message = f"{source}: annotations have no image_id that is the id of one of images"
        raise UserError(f"{message}: expected both to be numbers, and the same ones")
