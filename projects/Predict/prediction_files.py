"""What a detector has found in image files, as files that other programs open."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from revisit.boxes.coco_files import folder_of, write_data_set
from revisit.boxes.label_studio import interface_of, task_with_boxes
from revisit.boxes.predictions_file import IMAGES, RESULTS
from revisit.errors import UserError, expect
from revisit.files import read_json, write_whole

DATA_SET, TASKS, INTERFACE = "data_set.json", "label_studio.json", "label_studio.xml"
ALL = (RESULTS, IMAGES, DATA_SET, TASKS, INTERFACE)
_COMPUTED = ("id", "area", "iscrowd")  # of an annotation, which a result does not have


def write_images(output: Path, images: Sequence[dict[str, Any]], class_names: Sequence[str]) -> None:
    """Write images.json, which pycocotools reads as annotations without objects."""
    categories = [{"id": number, "name": name} for number, name in enumerate(class_names, start=1)]
    plain = [{key: value for key, value in image.items() if key != "objects"} for image in images]
    content = {"images": plain, "categories": categories, "annotations": []}
    write_whole(output / IMAGES, json.dumps(content))  # names that are not UTF-8 are escaped


def write_objects(
    output: Path, images: Sequence[dict[str, Any]], class_names: Sequence[str], num_files: int, version: str
) -> str:
    """Write predictions.json, COCO's results, and of the first ``num_files`` images, which are files and no frames of
    videos, data_set.json, a COCO data set, and label_studio.json and .xml, tasks and the interface that they need.

    Args:
        images: with ``objects``; ids of images and classes count from 1.
        version: the detector's name for Label Studio.

    Returns: the name of the data set, ``coco:FOLDER:FILE``; none where no image is a file.
    """
    write_whole(output / RESULTS, json.dumps([box for image in images for box in image["objects"]]))
    files = images[:num_files]
    if not files:
        return ""
    folder = folder_of(files)
    write_data_set(output / DATA_SET, files, class_names, folder=folder)
    tasks = [task_with_boxes(image, class_names, version) for image in files]
    write_whole(output / TASKS, json.dumps(tasks))
    write_whole(output / INTERFACE, interface_of(class_names))
    return f"coco:{folder}:{output / DATA_SET}"


def expect_no_corrections(output: Path) -> None:
    """Raise UserError where data_set.json is not of the results next to it, because somebody has changed it."""
    files = [output / name for name in (DATA_SET, RESULTS, IMAGES)]
    if all(file.is_file() for file in files):
        changed = f"{files[0]} has been changed since it was found, such as by corrections"
        expect(_is_of_results(*files), f"{changed}: give another --output, or move it")


def _is_of_results(data_set: Path, results: Path, about: Path) -> bool:
    try:
        found, images = read_json(data_set), read_json(about)
        numbers = [image["id"] for image in found["images"]]
        of_files = [box for box in read_json(results) if box["image_id"] <= len(numbers)]  # frames of videos come later
        is_whole = numbers == [*range(1, len(numbers) + 1)] and found["categories"] == images["categories"]
        return is_whole and _compared(found["annotations"]) == _compared(of_files)
    except (UserError, KeyError, TypeError):  # no COCO data set of ours
        return False


def _compared(boxes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: box[key] for key in box if key not in _COMPUTED} for box in boxes]
