"""Boxes that a detector is sure of, together with those of a data set: what a round of self-training learns from."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from revisit.boxes.boxes import corners_of, in_coco, iou
from revisit.data.sources.records import Records, others_than
from revisit.data.sources.subsets import is_looked_at
from revisit.errors import UserError, expect
from revisit.progress import progress

from detectron2.evaluation.coco_evaluation import instances_to_coco_json

SAME = 0.5  # IoU above which a box of the data set gives way to the detector's

logger = logging.getLogger(__name__)


def self_labelled(
    records: list[dict], read: Callable[[dict], np.ndarray], predict: Callable[[dict, np.ndarray], dict]
) -> list[dict[str, Any]]:
    """Each record with ``height``, ``width`` (px) and ``objects`` in COCO's format, classes numbered from 1.

    The detector's boxes are those that its own threshold lets through. Images that cannot be read are left out with a
    warning.

    Args:
        read: a record to its (H, W, 3) uint8 RGB pixels; raises UserError.
        predict: a record and these to what a detector finds, ``instances`` in px of the image.
    """
    labelled = []
    for record in progress("labelling", "image", records):
        try:
            pixels = read(record)
        except UserError as error:
            logger.warning(f"left out: {error}")
            continue
        instances = predict(record, pixels)["instances"].to("cpu")
        results = instances_to_coco_json(instances, 0)
        detected = [each | {"category_id": each["category_id"] + 1} for each in results]
        has_masks = instances.has("pred_masks")
        before = [_in_coco(box, has_masks) for box in record.get("annotations", [])]
        height, width = pixels.shape[:2]
        labelled.append({**record, "height": height, "width": width, "objects": merged(before, detected)})
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
    kept = [box for box, overlap in pairs if overlap <= SAME or box.get("iscrowd")]
    return [*detected, *kept]


def _in_coco(box: dict, has_masks: bool) -> dict:
    """An annotation of a record in COCO's format, with its mask where those of the detector have one."""
    annotation = in_coco(box)
    if not has_masks:
        annotation.pop("segmentation", None)
    return annotation
