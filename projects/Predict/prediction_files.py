"""What a detector has found in image files, as files that other programs open."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pycocotools.mask as run_lengths

from revisit.boxes.coco_files import folder_of, write_data_set
from revisit.boxes.label_studio import interface_of, task_with_boxes
from revisit.boxes.predictions_file import IMAGES, RESULTS
from revisit.files import write_whole

DATA_SET, TASKS, INTERFACE = "data_set.json", "label_studio.json", "label_studio.xml"
ALL = (RESULTS, IMAGES, DATA_SET, TASKS, INTERFACE)


class Predicted(NamedTuple):
    """Images and the objects in them, both by COCO's format; ids count from 1."""

    images: list[dict[str, Any]]  # id, file_name, height, width
    objects: list[dict[str, Any]]  # image_id, category_id, bbox (x, y, w, h) px, score; of masks segmentation
    class_names: list[str]


def write_images(output: Path, predicted: Predicted) -> None:
    """Write images.json, which pycocotools reads as annotations without objects."""
    categories = [{"id": number, "name": name} for number, name in enumerate(predicted.class_names, start=1)]
    content = {"images": predicted.images, "categories": categories, "annotations": []}
    write_whole(output / IMAGES, json.dumps(content))  # names that are not UTF-8 are escaped


def write_objects(output: Path, predicted: Predicted, num_files: int, version: str) -> str:
    """Write predictions.json, COCO's results, and of the first ``num_files`` images, which are files and no frames of
    videos, data_set.json, a COCO data set, and label_studio.json and .xml, tasks and the interface that they need.

    Args:
        version: the detector's name for Label Studio.

    Returns: the name of the data set, ``coco:FOLDER:FILE``; none where no image is a file.
    """
    write_whole(output / RESULTS, json.dumps(predicted.objects))
    images = predicted.images[:num_files]
    if not images:
        return ""
    of_image = defaultdict(list)
    for box in predicted.objects:
        of_image[box["image_id"]].append(box)
    lines = [_line(image, of_image[image["id"]]) for image in images]
    folder = folder_of(lines)
    write_data_set(output / DATA_SET, lines, predicted.class_names, folder=folder)
    names = predicted.class_names
    tasks = [task_with_boxes(image, of_image[image["id"]], names, version) for image in images]
    write_whole(output / TASKS, json.dumps(tasks))
    write_whole(output / INTERFACE, interface_of(names))
    return f"coco:{folder}:{output / DATA_SET}"


def _line(image: dict[str, Any], boxes: list[dict[str, Any]]) -> tuple[dict, dict]:
    """An image and its objects with their areas, as ``write_data_set`` takes them."""
    objects = [box | {"area": _area(box)} for box in boxes]
    return image, {"height": image["height"], "width": image["width"], "objects": objects}


def _area(box: dict[str, Any]) -> float:
    """Of its mask, px, or of the box where there is none."""
    if "segmentation" in box:
        return float(run_lengths.area(box["segmentation"]))
    _, _, width, height = box["bbox"]
    return width * height
