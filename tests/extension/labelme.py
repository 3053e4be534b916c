"""LabelMe's JSON files as a layout of labels: ``labelme:FOLDER_OF_IMAGES:FOLDER_OF_JSON`` (docs/extending.md)."""

import json
from pathlib import Path

import numpy as np

from revisit.data.sources.coco_boxes import COCO_METADATA, load_box_files
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.errors import translated

SHAPES = ("rectangle", "polygon")


def load_labelme(images: Path, labels: Path) -> LabelledSet:
    """Every image below ``images``, with the shapes of the JSON file at its place below ``labels``.

    Raises:
        UserError: see load_box_files; no such JSON, or a shape that is neither rectangle nor polygon.
    """
    return load_box_files(images, labels, ".json", read_labelme)


def read_labelme(file: Path, image: Path) -> tuple[dict[str, int], list[dict]]:
    """The size of the image, px, and its objects, in the form of load_box_files."""
    with translated(f"reading {file}", content=True):
        content = json.loads(file.read_text(encoding="utf-8"))
        size = {"height": content["imageHeight"], "width": content["imageWidth"]}
        return size, [object_of(shape) for shape in content["shapes"]]


def object_of(shape: dict) -> dict:
    kind = shape.get("shape_type", "polygon")
    if kind not in SHAPES:
        raise ValueError(f"shape_type {kind}, expected one of {', '.join(SHAPES)}")
    points = np.array(shape["points"], float)  # (N, 2) px; of a rectangle two opposite corners
    low, high = points.min(axis=0), points.max(axis=0)
    found = {"name": shape["label"], "bbox": [*low.tolist(), *(high - low).tolist()]}
    if kind == "polygon":
        found["segmentation"] = [points.ravel().tolist()]
    return found


LABEL_LAYOUT_REGISTRY.register(LabelLayout("labelme", "FOLDER_OF_IMAGES:FOLDER_OF_JSON", load_labelme, COCO_METADATA))
