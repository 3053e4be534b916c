"""What tools/predict.py has written: predictions.json, COCO's results, and images.json with files and classes."""

from pathlib import Path
from typing import Any, NamedTuple

from revisit.files import read_json


class Predictions(NamedTuple):
    """Results, and what their ids stand for."""

    results: list[dict[str, Any]]  # image_id, category_id, bbox (x, y, w, h) px, score
    files: dict[Any, str]  # by the ids of images
    names: dict[Any, str]  # by the ids of classes


def read_predictions(path: Path) -> Predictions:
    """Of a predictions.json and the images.json next to it. Raises UserError for files that are none of JSON, KeyError,
    TypeError or ValueError for others."""
    results, about = read_json(path), read_json(path.with_name("images.json"))
    files = {image["id"]: image["file_name"] for image in about["images"]}
    return Predictions(results, files, {category["id"]: category["name"] for category in about["categories"]})
