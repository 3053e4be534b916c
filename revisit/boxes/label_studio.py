"""Tasks for Label Studio, of images on this machine, with the boxes that a detector has found or without.

https://labelstud.io/guide/predictions describes the format: boxes are in percent of the image's sides.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from revisit.data.sources.coco_truth import LOCAL_FILE

IMAGE, LABEL = "image", "label"  # what an interface calls the image, and the boxes on it


def task_of(file_name: str) -> dict[str, Any]:
    """An image to label, where the document root is /; its name need not be UTF-8."""
    path = os.fsencode(os.path.abspath(file_name))
    return {"data": {IMAGE: f"{LOCAL_FILE}{quote(path.lstrip(b'/'))}"}}


def task_with_boxes(image: dict[str, Any], names: Sequence[str], version: str) -> dict[str, Any]:
    """An image with what a detector has found in it, to be corrected.

    Args:
        image: ``file_name``, ``height`` and ``width`` in px, and ``objects``: ``bbox`` (x, y, w, h) in px,
            ``category_id``, which counts ``names`` from 1, and ``score``, 0..1.
        version: the detector's name; Label Studio tells predictions apart by it.
    """
    objects = image["objects"]
    results = [_rectangle(image, box, names[box["category_id"] - 1]) for box in objects]
    scores = [box["score"] for box in objects]
    mean = sum(scores) / max(len(scores), 1)
    predicted = {"model_version": version, "score": mean, "result": results}
    return task_of(image["file_name"]) | {"predictions": [predicted]}


def _rectangle(image: dict[str, Any], box: dict[str, Any], name: str) -> dict[str, Any]:
    width, height = image["width"], image["height"]
    sides = zip(("x", "y", "width", "height"), box["bbox"], (width, height, width, height), strict=True)
    percent = {key: 100 * value / side for key, value, side in sides}
    value = {**percent, "rotation": 0, "rectanglelabels": [name]}
    return result_of(image, "rectanglelabels", score=box["score"], value=value)


def result_of(image: Mapping[str, Any], kind: str, **more: Any) -> dict[str, Any]:
    """An object of an image, of one of Label Studio's kinds of labels, with what else it has."""
    size = {"original_width": image["width"], "original_height": image["height"], "image_rotation": 0}
    return {"type": kind, "from_name": LABEL, "to_name": IMAGE, **size, **more}


def interface_of(names: Sequence[str], kind: str = "RectangleLabels") -> str:
    """The labelling interface, XML, that tasks with boxes or, of the kind BrushLabels, with masks need: their classes,
    and names of image and objects."""
    labels = "".join(f"    <Label value={quoteattr(name)}/>\n" for name in names)
    objects = f'  <{kind} name="{LABEL}" toName="{IMAGE}">\n{labels}  </{kind}>\n'
    return f'<View>\n  <Image name="{IMAGE}" value="${IMAGE}"/>\n{objects}</View>\n'
