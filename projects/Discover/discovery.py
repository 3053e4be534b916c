"""Find the objects of a data set's images, one image after the other, so that an interrupted call continues."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from pycocotools import mask as run_lengths
from tqdm import tqdm

from projects.Discover.parts import FINER, Part, find_parts
from projects.Discover.ranking import best, boxes_of, scores_of
from projects.Discover.recurrence import Recurrence, descriptors
from projects.Pictures.tiles import evenly_spread
from revisit.data.images.reader import require_record
from revisit.errors import UserError, expect
from revisit.files import write_whole, written_whole

Features = Callable[[np.ndarray], np.ndarray]  # (H, W, 3) uint8 RGB -> (h, w, C) float32

SETTINGS = "settings.json"
FOUND = "found.jsonl"  # a line for each image, in the order of the data set
REFERENCE = "reference.npz"
REFERENCES = 100  # images with which each one is compared
CANDIDATES = 150  # of an image
NEARLY_SAME = 0.7  # IoU of two candidates of which one is enough

logger = logging.getLogger(__name__)


class Candidates(NamedTuple):
    """The parts of an image that are left of many, best first."""

    parts: list[Part]
    scores: np.ndarray  # (n,) float64, of this image alone
    descriptors: np.ndarray  # (n, D) float64


def find_candidates(features: np.ndarray) -> Candidates:
    """Of (h, w, C) float32 features of the cells that cover an image."""
    parts = find_parts(features)
    if not parts:
        return Candidates([], np.zeros(0), np.zeros((0, 3 * features.shape[2] + 2)))
    scores, boxes = scores_of(features, parts), boxes_of(parts)
    kept = best(boxes, scores, CANDIDATES, NEARLY_SAME)
    return Candidates([parts[index] for index in kept], scores[kept], descriptors(features, boxes[kept] / FINER))


def find_objects(
    features: np.ndarray, height: int, width: int, count: int, recurrence: Recurrence, name: str = ""
) -> list[dict[str, Any]]:
    """The objects of an image of ``height`` x ``width`` px, best first, as COCO's results have them: ``bbox`` (x, y, w,
    h) px, ``segmentation`` in run lengths, ``score`` above 0: recurrence squared times the root of
    the own image's score.

    Args:
        features: (h, w, C) float32, of the cells that cover the image.
        count: the most objects.
        recurrence: what other images have.
        name: of this image among these.
    """
    parts, own_scores, described = find_candidates(features)
    scores = recurrence(described, name) ** 2 * np.sqrt(np.maximum(own_scores, 0))
    rows, columns = features.shape[0] * FINER, features.shape[1] * FINER
    objects = []
    for index in best(boxes_of(parts), scores, count):
        mask = _in_image(parts[index], rows, columns, height, width)
        if scores[index] > 0 and mask.any():
            objects.append(_result(mask, scores[index]))
    return objects


def claim(output: Path, settings: dict[str, Any]) -> None:
    """Write SETTINGS. Raises UserError where they are there and differ, because results would be of both."""
    path = output / SETTINGS
    if not path.is_file():
        write_whole(path, json.dumps(settings))
    before = json.loads(path.read_text())
    other = ", ".join(name for name, value in settings.items() if before.get(name) != value)
    expect(not other, f"{output} was made with other settings ({other}): give another --output")


def discover(records: list[dict], features_of: Features, output: Path, count: int) -> list[tuple[dict, dict[str, Any]]]:
    """Append a line for every image to ``output``/FOUND: file name, size and objects; those that are there stay.

    Returns the records and their lines, without those of images that cannot be read, which are warned of. Ends with
    UserError where none can be read, and where the lines that are there are of other images.
    """
    path = output / FOUND
    names = {record["file_name"] for record in records}
    known = {line["file_name"] for line in read_found(path)}
    foreign = sorted(known - names)
    expect(not foreign, f"{path} has {foreign[:1]}, which is none of these images: give another --output")
    if known:
        print(f"{len(known)} of {len(records)} images were done before", flush=True)
    recurrence = Recurrence(reference_of(records, features_of, output))
    left = [record for record in records if record["file_name"] not in known]
    with open(path, "a", encoding="utf-8") as file:
        for name, image in _images(left, "discovering"):
            height, width = image.shape[:2]
            objects = find_objects(features_of(image), height, width, count, recurrence, name)
            line = {"file_name": name, "height": height, "width": width, "objects": objects}
            file.write(json.dumps(line) + "\n")
            file.flush()
    lines = {line["file_name"]: line for line in read_found(path)}
    expect(lines, "none of the images can be read")
    return [(record, lines[record["file_name"]]) for record in records if record["file_name"] in lines]


def reference_of(records: list[dict], features_of: Features, output: Path) -> dict[str, np.ndarray]:
    """Descriptors of the candidates of REFERENCES images from all over the data set, kept in ``output``."""
    path = output / REFERENCE
    if not path.is_file():
        spread = [records[index] for index in evenly_spread(len(records), REFERENCES)]
        images = _images(spread, "comparing")
        described = {name: find_candidates(features_of(image)).descriptors for name, image in images}
        rows_of = {f"of_{n}": rows for n, rows in enumerate(described.values())}
        with written_whole(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, names=np.array(list(described)), **rows_of)
    with np.load(path) as kept:
        return {str(name): kept[f"of_{n}"] for n, name in enumerate(kept["names"])}


def _images(records: list[dict], doing: str) -> Iterator[tuple[str, np.ndarray]]:
    """Names and pixels, (H, W, 3) uint8 RGB, of those that can be read."""
    for record in tqdm(records, unit="image", desc=doing):
        try:
            yield record["file_name"], require_record(record)
        except UserError as error:
            logger.warning(f"left out: {error}")


def read_found(path: Path) -> list[dict[str, Any]]:
    """The lines of FOUND, [] where there is none; a last line that a kill has cut is taken away from the file."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


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
