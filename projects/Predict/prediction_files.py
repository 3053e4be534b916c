"""What a detector has found in image files, as files that other programs open."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from revisit.boxes.coco_files import folder_of, write_data_set
from revisit.boxes.label_studio import interface_of, task_with_boxes
from revisit.boxes.predictions_file import IMAGES, RESULTS
from revisit.files import DIGEST, write_whole

DATA_SET, TASKS, INTERFACE = "data_set.json", "label_studio.json", "label_studio.xml"
ALL = (RESULTS, IMAGES, DATA_SET, DATA_SET + DIGEST, TASKS, INTERFACE)
OF_MAPS = GEOPACKAGE, GEOJSON = "predictions.gpkg", "predictions.geojson"  # which Tiles writes of images on maps


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
