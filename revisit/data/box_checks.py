"""What the boxes of a data set look like, once before a training: counts to read, and boxes that cannot be meant."""

import logging
from collections import Counter
from typing import NamedTuple

import numpy as np

from revisit.data.image_folders import Records
from revisit.data.reader import read_size
from revisit.errors import UserError, expect, some

from detectron2.structures import BoxMode

MARGIN = 1.0  # px that a box may reach over the edge of its image, as rounding makes it
MANY = 0.05  # share of boxes from which on a doubt is about all of them
HEADS_READ = 1000  # images whose size is compared with the annotation's
LISTED = 20  # classes whose counts are listed; of more, half as many of the most and of the least frequent

Note = tuple[int, str]  # a level of ``logging`` and what to say, before there is a log


class Boxes(NamedTuple):
    """All boxes of a data set; N of them."""

    corners: np.ndarray  # (N, 4) float64, x0 y0 x1 y1 in px
    sizes: np.ndarray  # (N, 2) width and height of the image, px; NaN where the record does not say
    places: np.ndarray  # (N,) index of the record


def inspect_boxes(name: str, records: Records, classes: list[str], *, to_learn: bool) -> list[Note]:
    """How many boxes there are, per class, and which are doubtful, each kind with an example.

    Args:
        records: Detectron2's, with ``annotations``.
        classes: names by category id.
        to_learn: from the boxes, instead of scoring against them.

    Raises:
        UserError: images that are not of the size that their annotation says; boxes that cannot be meant: not finite,
            of negative size, all on a scale of 0 to 1; no box to learn from.
    """
    _check_sizes(name, records)
    boxes = _gather(records)
    count = len(boxes.corners)
    kept = Counter(a["category_id"] for record in records for a in record["annotations"] if not a.get("iscrowd", 0))
    empty = sum(not record["annotations"] for record in records)
    counts = f"{name}: {len(records)} images, {empty} of them without boxes; {count} boxes: "
    notes = [(logging.INFO, counts + _listed([(label, kept[n]) for n, label in enumerate(classes)]))]
    if not kept:
        crowds = f" but {count} of crowds" if count else ""
        expect(not to_learn, f"data set {name!r} has no box{crowds}: expected annotations to learn from")
        return [*notes, (logging.WARNING, f"data set {name!r} has no box{crowds}: nothing can be scored against it")]
    doubts = [f"{_example(boxes, records, wrong)}, {what}" for what, wrong in _doubtful(name, boxes, records)]
    first = next((r["file_name"] for r in records for a in r["annotations"] if a.get("id") == 0), None)
    if first:
        doubts.append(f"a box of {first} has the id 0, for which pycocotools counts a hit as none: scored by other ids")
    missing = [label for n, label in enumerate(classes) if not kept[n]]
    if missing:
        doubts.append(f"no box of {len(missing)} of {len(classes)} classes: {some(missing)}")
    return notes + [(logging.WARNING, f"data set {name!r}: {doubt}") for doubt in doubts]


def check_masks(name: str, records: Records, mask_format: str, *, to_learn: bool) -> None:
    """Raises UserError unless all boxes have masks of their image's size, to learn from in INPUT.MASK_FORMAT."""
    for record in records:
        for annotation in record["annotations"]:
            if to_learn and annotation.get("iscrowd", 0):
                continue
            mask, where = annotation.get("segmentation"), f"data set {name!r}: {record['file_name']} has a box"
            expect(mask is not None, f"{where} without a mask: expected masks of all, or MODEL.MASK_ON False")
            if isinstance(mask, dict):
                expect(
                    mask_format == "bitmask" or not to_learn, f"{where} with run lengths: set INPUT.MASK_FORMAT bitmask"
                )
                height, width = record["height"], record["width"]
                sound = list(mask["size"]) == [height, width] and sum_of_runs(mask["counts"]) == height * width
                expect(sound, f"{where} whose run lengths do not add up to its {height} x {width} px: write them anew")


def sum_of_runs(counts: str | bytes) -> int:
    """Of pycocotools' compressed run lengths; -1 where these are none, which pycocotools reads without complaint.

    A number is in characters of 5 bits, the lowest first, and from the fourth run on a difference to the last but one.
    """
    runs, value, shift = [], 0, 0
    for code in counts.encode() if isinstance(counts, str) else counts:
        code -= 48
        if not 0 <= code < 64:
            return -1
        value |= (code & 31) << shift
        shift += 5
        if not code & 32:
            value -= (code & 16) << shift - 4
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value, shift = 0, 0
    return -1 if shift or min(runs, default=-1) < 0 else sum(runs)


def _check_sizes(name: str, records: Records) -> None:
    """Of at most HEADS_READ images, evenly spread."""
    for record in records[:: -(-len(records) // HEADS_READ)]:
        if "width" not in record:
            continue
        said, found = ((size["width"], size["height"]) for size in (record, read_size(record["file_name"])))
        swapped = "width and height are swapped" if said == found[::-1] else "expected its own size"
        expect(
            said == found,
            f"data set {name!r}: {record['file_name']} has {found[0]} x {found[1]} px, its annotation {said[0]} x "
            f"{said[1]}: {swapped} (width x height, upright as EXIF turns it); write the image's size, and its boxes",
        )


def _doubtful(name: str, boxes: Boxes, records: Records) -> list[tuple[str, np.ndarray]]:
    """What is doubtful, in words, and (N,) which boxes are. Raises UserError for boxes that cannot be meant."""
    (x0, y0, x1, y1), (width, height) = boxes.corners.T, boxes.sizes.T
    impossible = {
        "not finite": ~np.isfinite(boxes.corners).all(axis=1),
        "of negative width or height": (x1 < x0) | (y1 < y0),
        "within 0 and 1, so shares of the image": np.full(len(x0), boxes.corners.max() <= 1),
    }
    for what, wrong in impossible.items():
        if wrong.any():
            example = _example(boxes, records, wrong)
            raise UserError(f"data set {name!r}: {example}, {what}: expected x0 <= x1 and y0 <= y1, in pixels")
    outside = (x1 > width + MARGIN) | (y1 > height + MARGIN) | (x0 < -MARGIN) | (y0 < -MARGIN)
    # Corners that were read as width and height: what was given for these lies in the image, beyond the first corner.
    as_corners = (x1 - x0 > x0) & (y1 - y0 > y0) & (x1 - x0 <= width + MARGIN) & (y1 - y0 <= height + MARGIN)
    swapped = outside.mean() >= MANY and as_corners.all()
    hint = "; all would fit as x0, y0, x1, y1, where x, y, width, height are expected" if swapped else ""
    kinds = [(f"reach out of their images{hint}", outside), ("without area, left out", (x1 == x0) | (y1 == y0))]
    return [(what, wrong) for what, wrong in kinds if wrong.any()]


def _example(boxes: Boxes, records: Records, wrong: np.ndarray) -> str:
    first = int(np.flatnonzero(wrong)[0])
    corners = ", ".join(f"{value:g}" for value in boxes.corners[first])
    file = records[boxes.places[first]]["file_name"]
    return f"{int(wrong.sum())} of {len(wrong)} boxes, such as x0, y0, x1, y1 = {corners} in {file}"


def _listed(counts: list[tuple[str, int]]) -> str:
    if len(counts) > LISTED:
        counts = sorted(counts, key=lambda pair: -pair[1])
        counts = [*counts[: LISTED // 2], ("...", len(counts) - LISTED), *counts[-LISTED // 2 :]]
    return ", ".join(f"{label} {count}" for label, count in counts)


def _gather(records: Records) -> Boxes:
    boxes = [
        (box["bbox"], box["bbox_mode"], place) for place, record in enumerate(records) for box in record["annotations"]
    ]
    corners = np.array([box for box, _, _ in boxes], np.float64).reshape(-1, 4)
    with_sizes = np.array([mode == BoxMode.XYWH_ABS for _, mode, _ in boxes], bool)
    corners[with_sizes, 2:] += corners[with_sizes, :2]
    sizes = [(record.get("width", np.nan), record.get("height", np.nan)) for record in records]
    places = np.array([place for _, _, place in boxes], np.int64)
    return Boxes(corners, np.array(sizes, np.float64)[places], places)
