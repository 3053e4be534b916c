"""What detectors have found, as files: COCO's results, and next to them what the ids of images and classes mean."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from revisit.boxes.boxes import Boxes
from revisit.errors import expect
from revisit.files import is_url, read_json

RESULTS, IMAGES = "predictions.json", "images.json"  # of tools/predict.py
# What an evaluation writes below OUTPUT_DIR: boxes in COCO's result format, and what their numbers mean.
PREDICTIONS, OF_PREDICTIONS = "inference/coco_instances_results.json", "inference/data_set.json"


def read_results(path: Path, images: Iterable[Any], classes: Iterable[Any]) -> list[Boxes]:
    """Of each of ``images``, by their ids, what COCO's results say; classes are places among the ids ``classes``.

    Raises UserError for a file that is no JSON, or has other images; KeyError, TypeError or ValueError for what is none
    of COCO's results.
    """
    numbers = {identity: number for number, identity in enumerate(classes)}
    of_image = defaultdict(list)
    for result in read_json(path):
        of_image[result["image_id"]].append({**result, "category_id": numbers[result["category_id"]]})
    found = [Boxes.of_results(of_image.pop(image, ())) for image in images]
    gone = f"{len(of_image)} of those that were predicted for are gone"
    expect(not of_image, f"the data set has other images by now: {gone}")
    return found


def read_predictions(path: Path) -> tuple[list[tuple[str, Boxes]], list[str]]:
    """Of a predictions.json and the images.json next to it: files with what is in them, and names of classes. Raises as
    ``read_results``."""
    about = read_json(path.with_name(IMAGES))
    files = {image["id"]: image["file_name"] for image in about["images"]}
    names = {category["id"]: category["name"] for category in about["categories"]}
    return list(zip(files.values(), read_results(path, files, names), strict=True)), list(names.values())


def evaluated_set(run: Path) -> tuple[str, dict[int, str]]:
    """The data set of a run's PREDICTIONS, and the names of its classes by their ids in the network's order. Raises
    UserError for a data set at a URL; others as ``read_results``."""
    about = read_json(run / OF_PREDICTIONS)
    name = about["data_set"]
    expect(not is_url(name), f"they are of {name}, and nothing is fetched for a file: expected a copy on this machine")
    return name, {int(identity): label for identity, label in about["classes"].items()}
