"""Boxes that a detector is sure of, together with those of a data set: what a round of self-training learns from."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from projects.Predict.predictions import Predictor
from projects.Tiles.tested_windows import line_of, objects_of_lines, windows_to_test
from projects.Tiles.window_files import look_at
from projects.Tiles.windows import Tiling
from revisit.boxes.boxes import corners_of, in_coco, iou
from revisit.data.sources.records import NOT_SCORED, WITHOUT_LABELS, Records, others_than
from revisit.data.sources.subsets import is_looked_at
from revisit.errors import UserError, expect
from revisit.progress import progress

from detectron2.evaluation.coco_evaluation import instances_to_coco_json

SAME = 0.5  # IoU above which a box of the data set gives way to the detector's

logger = logging.getLogger(__name__)


class Detected(NamedTuple):
    """What a detector finds in an image."""

    height: int  # px, of the image
    width: int
    objects: list[dict]  # as COCO's results, classes numbered from 0


def in_whole(predictor: Predictor, record: dict) -> Detected:
    """In an image that is seen whole. Raises UserError where it cannot be read."""
    pixels = predictor.read(record)
    instances = predictor(record, pixels)["instances"].to("cpu")
    height, width = pixels.shape[:2]
    return Detected(height, width, instances_to_coco_json(instances, 0))


def in_windows(predictor: Predictor, tiling: Tiling, nms: float, record: dict) -> Detected:
    """In the windows of an image, merged. Raises as in_whole.

    Args:
        nms: IoU above which the better of two boxes of a class stays.
    """
    height, width, _ = look_at(str(record["file_name"]))
    lines = []
    for window in windows_to_test(record, tiling):
        instances = predictor(window, predictor.read(window))["instances"]
        lines.append(line_of(window, instances, height, width))
    return Detected(height, width, list(objects_of_lines(lines, height, width, nms)))


def self_labelled(
    records: Records, detect: Callable[[dict], Detected], *, has_masks: bool = False
) -> list[dict[str, Any]]:
    """Each record with ``height``, ``width`` (px) and ``objects`` in COCO's format, classes numbered from 1.

    The detector's boxes are those that its own threshold lets through. Images that cannot be read are left out with a
    warning.

    Args:
        detect: raises UserError for an image that cannot be read.
        has_masks: whether what it finds has masks; else those of the records go, too.
    """
    labelled = []
    for record in progress("labelling", "image", records):
        try:
            found = detect(record)
        except UserError as error:
            logger.warning(f"left out: {error}")
            continue
        detected = [each | {"category_id": each["category_id"] + 1} for each in found.objects]
        before = [_in_coco(box, has_masks) for box in record.get("annotations", [])]
        size = {"height": found.height, "width": found.width}
        kept = {key: value for key, value in record.items() if key != WITHOUT_LABELS or not detected}
        labelled.append({**kept, **size, "objects": merged(before, detected)})
    return labelled


def without_labelled(records: Records, labelled: Records) -> list[dict]:
    """``records`` without the images that somebody has looked at for ``labelled``, and found empty or not.

    Raises:
        UserError: there is no such image, or no other.
    """
    looked_at = [record for record in labelled if is_looked_at(record)]
    left = others_than(looked_at, records)
    which = f"{len(looked_at)} images of --labelled are labelled"
    expect(len(left) < len(records), f"{which}, and none of them is a file of --data: expected the same files")
    expect(left, f"{which}, and every file of --data is one of them: expected others, too")
    return left


def merged(labelled: list[dict], detected: list[dict]) -> list[dict]:
    """``detected``, and of ``labelled`` those that overlap none of these with an IoU above SAME, of any class; crowds
    stay. Both have a ``bbox`` (x, y, w, h) px."""
    if not (labelled and detected):
        return [*detected, *labelled]
    highest = iou(corners_of(labelled), corners_of(detected)).max(axis=1)
    pairs = zip(labelled, highest, strict=True)
    kept = [box for box, overlap in pairs if overlap <= SAME or (box.get("iscrowd") and not box.get(NOT_SCORED))]
    return [*detected, *kept]


def _in_coco(box: dict, has_masks: bool) -> dict:
    """An annotation of a record in COCO's format, with its mask where those of the detector have one."""
    annotation = in_coco(box)
    if not has_masks:
        annotation.pop("segmentation", None)
    return annotation
