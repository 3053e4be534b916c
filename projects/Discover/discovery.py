"""Find the objects of a data set's images, one image after the other, so that an interrupted call goes on."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from pycocotools import mask as run_lengths
from tqdm import tqdm

from projects.Discover.parts import FINER, Part, find_parts
from projects.Discover.ranking import best, boxes_of, scores_of
from revisit.data.images.reader import require_record
from revisit.errors import UserError, expect

FOUND = "found.jsonl"  # a line for each image, in the order of the data set

logger = logging.getLogger(__name__)


def find_objects(features: np.ndarray, height: int, width: int, count: int) -> list[dict[str, Any]]:
    """The objects of an image of ``height`` x ``width`` px, best first, as COCO's results have them: ``bbox`` (x, y, w,
    h) px, ``segmentation`` in run lengths, ``score`` above 0.

    Args:
        features: (h, w, C) float32, of the cells that cover the image.
        count: the most objects.
    """
    parts = find_parts(features)
    if not parts:
        return []
    scores = scores_of(features, parts)
    kept = best(boxes_of(parts), scores, count)
    rows, columns = features.shape[0] * FINER, features.shape[1] * FINER
    found = []
    for index in kept:
        mask = _in_image(parts[index], rows, columns, height, width)
        if scores[index] > 0 and mask.any():
            found.append(_result(mask, scores[index]))
    return found


def discover(records: list[dict], features_of: Callable[[np.ndarray], np.ndarray], output: Path, count: int) -> None:
    """Append a line for every image to ``output``/FOUND: file name, size and objects; those that are there stay.

    An image that cannot be read has no line, and a warning. Ends with UserError where none can be read, and where the
    lines that are there are of other images.
    """
    path = output / FOUND
    done = read_found(path)
    names = [record["file_name"] for record in records]
    foreign = [line["file_name"] for line in done if line["file_name"] not in set(names)]
    expect(not foreign, f"{path} has {foreign[:1]}, which is none of these images: give another --output")
    known = {line["file_name"] for line in done}
    left = [record for record in records if record["file_name"] not in known]
    if known:
        print(f"{len(known)} of {len(records)} images were done before", flush=True)
    with open(path, "a", encoding="utf-8") as file:
        for record in tqdm(left, unit="image", desc="discovering"):
            try:
                image = require_record(record)
            except UserError as error:
                logger.warning(f"left out: {error}")
                continue
            height, width = image.shape[:2]
            objects = find_objects(features_of(image), height, width, count)
            line = {"file_name": record["file_name"], "height": height, "width": width, "objects": objects}
            file.write(json.dumps(line) + "\n")
            file.flush()
    expect(read_found(path), "none of the images can be read")


def read_found(path: Path) -> list[dict[str, Any]]:
    """The lines of FOUND, [] where there is none; a last line that a kill has cut is taken away from the file."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


def in_order(lines: list[dict[str, Any]], records: list[dict]) -> Iterator[tuple[dict, dict[str, Any]]]:
    """Records and what was found in each, without those that could not be read."""
    by_name = {line["file_name"]: line for line in lines}
    for record in records:
        if line := by_name.get(record["file_name"]):
            yield record, line


def _in_image(part: Part, rows: int, columns: int, height: int, width: int) -> np.ndarray:
    """(height, width) uint8: the mask of a part in px of its image."""
    x0, y0, x1, y1 = part.box
    canvas = np.zeros((rows, columns), np.uint8)
    canvas[y0:y1, x0:x1] = part.mask
    return cv2.resize(canvas, (width, height), interpolation=cv2.INTER_NEAREST)


def _result(mask: np.ndarray, score: float) -> dict[str, Any]:
    encoded = run_lengths.encode(np.asfortranarray(mask))
    box = run_lengths.toBbox(encoded).tolist()
    area = int(run_lengths.area(encoded))
    segmentation = {"size": encoded["size"], "counts": encoded["counts"].decode("ascii")}
    return {"bbox": box, "segmentation": segmentation, "area": area, "score": float(score)}
