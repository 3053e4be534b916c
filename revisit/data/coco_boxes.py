"""Boxes and masks in COCO's format, the one form that all layouts of boxes take: checked, completed, and loaded.

A file that is read, and what ``box_layouts`` makes of other layouts, is a dict with the lists ``categories``,
``images`` and ``annotations`` (https://cocodataset.org/#format-data).
"""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from revisit.data.image_folders import existing
from revisit.data.reader import read_size
from revisit.data.records import Records
from revisit.errors import UserError, first_line

from detectron2.data.datasets.coco import load_coco_json

LARGEST = 2**53  # of whole numbers that a float holds exactly
FAR = 2**20  # px, beyond any image; pycocotools draws an outline step by step, and dies of one without an end


def load_coco(images: Path, annotations: Path, name: str) -> Records:
    """Boxes and masks of a file in COCO's format; its classes become those of the data set ``name``.

    Raises:
        UserError: the file is none of COCO's, or an image that it names is not there.
    """
    for path in (images, annotations):
        if not path.exists():
            raise UserError(f"data set {name!r}: {path} not found")
    try:
        content = json.loads(annotations.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{annotations} holds no annotations in COCO's format ({first_line(error)})") from error
    check_coco(content, str(annotations))
    existing([{"file_name": os.path.join(images, image["file_name"])} for image in content["images"]])
    if all(_has_size(image) for image in content["images"]):
        return load_coco_json(str(annotations), str(images), name)
    return load_coco_dict(content, images, name, str(annotations))


def load_coco_dict(content: dict, images: Path, name: str, source: str) -> Records:
    """Detectron2's records of a dict in COCO's format, by Detectron2's own loader, sorted by the images' ids.

    Args:
        content: sizes of images are added to it.
        images: the folder in which the images' file names are to be found.
        name: of the data set, which gets the classes.
        source: what the dict was made of, for messages.

    Raises:
        UserError: see check_coco.
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
    annotations = content["annotations"] = list(filter(_may_be_drawn, content["annotations"]))
    for annotation in annotations:
        if type(annotation.get("area")) not in (int, float):
            annotation["area"] = annotation["bbox"][2] * annotation["bbox"][3]
        annotation["iscrowd"] = annotation.get("iscrowd") or 0
        if isinstance(annotation.get("segmentation"), list):
            annotation["segmentation"] = _outlines(annotation["segmentation"])
    if any(annotation["id"] <= 0 for annotation in annotations):
        for number, annotation in enumerate(annotations, start=1):
            annotation["id"] = number


def _has_size(image: dict) -> bool:
    return image.get("width") is not None and image.get("height") is not None


def _add_sizes(content: dict, images: Path) -> None:
    """Of images that have none, those of their files."""
    for image in content["images"]:
        if not _has_size(image):
            image.update(read_size(os.path.join(images, image["file_name"])))


def _outlines(polygons: list[list[float]]) -> list[list[float]]:
    """Those of three points and more, as Detectron2's loader takes them."""
    return [points for points in polygons if len(points) % 2 == 0 and len(points) >= 6]


def _may_be_drawn(annotation: dict) -> bool:
    """Whether an annotation has no mask, or one with an inside: Detectron2's loader leaves out others."""
    mask = annotation.get("segmentation")
    return not mask or isinstance(mask, dict) or bool(_outlines(mask))


def _is_whole(value: Any) -> bool:
    return type(value) is int and abs(value) < LARGEST


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_number(value: Any) -> bool:
    return type(value) is float or _is_whole(value)


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_number, values))


def _is_side(value: Any) -> bool:
    return value is None or (_is_number(value) and value > 0)


def _is_mask(mask: Any) -> bool:
    """None, polygons, or run lengths of an image."""
    if not isinstance(mask, dict):
        polygons = mask or []
        return isinstance(polygons, list) and all(_are_numbers(p) and all(abs(v) < FAR for v in p) for p in polygons)
    size, counts = mask.get("size"), mask.get("counts")
    if not (isinstance(size, list) and len(size) == 2 and all(_is_whole(side) and 0 < side < 2**16 for side in size)):
        return False
    if isinstance(counts, list):
        return all(_is_whole(n) and n >= 0 for n in counts) and sum(counts) == size[0] * size[1]
    return _is_text(counts)  # compressed


_SIDE = (_is_side, "a number of pixels, or neither height nor width")
# By list, in the order of checking: a field, whether its value (None where there is none) is sound, what is expected.
RULES: dict[str, dict[str, tuple[Callable[[Any], bool], str]]] = {
    "categories": {"id": (_is_whole, "a whole number"), "name": (_is_text, "text")},
    "images": {
        "id": (lambda value: _is_whole(value) or _is_text(value), "a whole number"),
        "file_name": (_is_text, "text"),
        "height": _SIDE,
        "width": _SIDE,
    },
    "annotations": {
        "id": (_is_whole, "a whole number"),
        "image_id": (lambda value: _is_whole(value) or _is_text(value), "the id of an image"),
        "category_id": (_is_whole, "a category's id"),
        "bbox": (lambda value: _are_numbers(value) and len(value) == 4, "[x, y, width, height] in px"),
        "iscrowd": (lambda value: value is None or (type(value) in (int, bool) and value in (0, 1)), "0 or 1"),
        "ignore": (lambda value: not value, "iscrowd in its place"),
        "segmentation": (_is_mask, "lists of x, y, x, y, ... in px, or run lengths of an image"),
        "keypoints": (
            lambda value: not value or (_are_numbers(value) and len(value) % 3 == 0),
            "x, y, visibility",
        ),
    },
}


def check_coco(content: Any, source: str) -> None:
    """Check a dict in COCO's format by RULES, and that its lists refer to each other.

    Raises:
        UserError: what is wrong; the message names ``source``, the entry and its field.
    """
    if not isinstance(content, dict) or not all(isinstance(content.get(part, []), list) for part in RULES):
        raise UserError(f"{source} is not in COCO's format: expected an object with lists {', '.join(RULES)}")
    for part, rules in RULES.items():
        ids = set()
        for place, entry in enumerate(content.get(part, [])):
            if not isinstance(entry, dict):
                raise UserError(f"{source}: {part}[{place}] is {_short(entry)}: expected an object")
            for field, (is_sound, expected) in rules.items():
                if not is_sound(entry.get(field)):
                    value = _short(entry.get(field))
                    raise UserError(f"{source}: {part}[{place}] has the {field} {value}: expected {expected}")
            if entry["id"] in ids:
                raise UserError(f"{source}: {part}[{place}] has the id {entry['id']!r} of another: expected its own")
            ids.add(entry["id"])
        if part != "annotations" and not ids:
            raise UserError(f"{source} has no {part}: expected some")
        if len({type(id_) for id_ in ids}) > 1:
            raise UserError(f"{source}: ids of {part} are numbers and texts: expected numbers")
    _check_references(content, source)


def _check_references(content: dict, source: str) -> None:
    categories, images = ({entry["id"] for entry in content[part]} for part in ("categories", "images"))
    annotations = content.get("annotations", [])
    for place, annotation in enumerate(annotations):
        if annotation["category_id"] not in categories:
            message = f"{source}: annotations[{place}] has the category_id {annotation['category_id']}"
            raise UserError(f"{message}: expected the id of one of categories")
    if annotations and not any(annotation["image_id"] in images for annotation in annotations):
        message = f"{source}: annotations have no image_id that is the id of one of images"
        raise UserError(f"{message}: expected both to be numbers, and the same ones")


def _short(value: Any) -> str:
    """A value in a message of one line."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]} ..."
