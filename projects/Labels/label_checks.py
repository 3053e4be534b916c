"""What is looked at for each kind of network, in the core's LABEL_CHECK_REGISTRY."""

import logging
import re

import numpy as np

from projects.Labels.box_checks import check_fit, check_keypoints, check_masks, inspect_boxes
from projects.Labels.mask_checks import inspect_masks
from projects.Labels.truth import check_truth
from revisit.boxes.boxes import Boxes, sides_of
from revisit.data.sources.class_names import names_of
from revisit.data.sources.inspection import LABEL_CHECK_REGISTRY, check_records
from revisit.data.sources.records import Records
from revisit.keys import DETECTORS, FINETUNING, architecture_of

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

FEWEST_PX, MOST_TINY = 4, 0.1  # of a box's shorter side; and the share of boxes that may have less
_SIDES = {"left": "right", "right": "left"}

logger = logging.getLogger(__name__)


@LABEL_CHECK_REGISTRY.register()
def masks(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    """Masks of a segmentation, before their classes are compared with the network's. Raises UserError."""
    if architecture_of(cfg) == "SemanticSegmentor" and "sem_seg_file_name" in records[0]:
        inspect_masks(name, records, to_learn=to_learn)


@LABEL_CHECK_REGISTRY.register()
def boxes(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    """Boxes of a detector, once they are known to be there. Raises UserError."""
    if architecture_of(cfg) not in DETECTORS:
        return
    check_records(cfg, name, records)
    if not to_learn:
        check_truth(name)
    is_two_stage = architecture_of(cfg) == "GeneralizedRCNN"
    masks_are_learned = cfg.MODEL.MASK_ON and is_two_stage
    if cfg.MODEL.KEYPOINT_ON and is_two_stage:
        check_keypoints(name, records, cfg.MODEL.ROI_KEYPOINT_HEAD.NUM_KEYPOINTS, to_learn=to_learn)
    if masks_are_learned:
        check_masks(name, records, cfg.INPUT.MASK_FORMAT, to_learn=to_learn)
    inspect_boxes(name, records, MetadataCatalog.get(name).thing_classes, to_learn=to_learn)
    if masks_are_learned:
        check_fit(name, records)
    if to_learn:
        _warn_of_tiny(cfg, name, records)
        return
    most, limit = max(len(record["annotations"]) for record in records), cfg.TEST.DETECTIONS_PER_IMAGE
    if most > limit:
        logger.warning(
            f"data set {name!r} has images of up to {most} objects, of which {limit} can be found: set "
            "TEST.DETECTIONS_PER_IMAGE to more"
        )


@LABEL_CHECK_REGISTRY.register()
def sides(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    """Warn of classes that a flip makes into each other, such as left_hand and right_hand."""
    if not to_learn or architecture_of(cfg) not in FINETUNING or cfg.INPUT.RANDOM_FLIP != "horizontal":
        return
    classes = {label.lower(): label for label in map(str, names_of(name))}
    flipped = {label: re.sub("left|right", lambda side: _SIDES[side[0]], label) for label in classes}
    if pairs := [label for label, other in flipped.items() if label < other in classes]:
        logger.warning(
            f"data set {name!r} has the classes {classes[pairs[0]]} and {classes[flipped[pairs[0]]]}: "
            "INPUT.RANDOM_FLIP horizontal shows one as the other, under its old name; expected INPUT.RANDOM_FLIP none"
        )


def _warn_of_tiny(cfg: CfgNode, name: str, records: Records) -> None:
    """Where a tenth of the boxes have few px left in the largest image that is learned from."""
    least, most = max(cfg.INPUT.MIN_SIZE_TRAIN), cfg.INPUT.MAX_SIZE_TRAIN
    sized = [record for record in records if "height" in record and "width" in record]
    boxes = [box for record in sized for box in record["annotations"]]
    shapes = _parts_of(np.array([(record["height"], record["width"]) for record in sized]).reshape(-1, 2), cfg)
    scales = np.minimum(least / shapes.min(axis=1), most / shapes.max(axis=1)) if least else np.ones(len(shapes))
    of_boxes = np.repeat(scales, [len(record["annotations"]) for record in sized])
    shorter = sides_of(Boxes.of_annotations(boxes).xyxy).min(axis=1)
    tiny = (shorter * of_boxes < FEWEST_PX).sum()
    if tiny > MOST_TINY * len(boxes):
        logger.warning(
            f"{tiny} of {len(boxes)} boxes of data set {name!r} are less than {FEWEST_PX} px wide or high at {least} "
            "px, so they can hardly be found: raise INPUT.MIN_SIZE_TRAIN and the other sizes, or cut tiles"
        )


def _parts_of(shapes: np.ndarray, cfg: CfgNode) -> np.ndarray:
    """(N, 2) height and width of the smallest part of each image that INPUT.CROP resizes, px; without it the image."""
    crop = cfg.INPUT.CROP
    if not crop.ENABLED:
        return shapes
    if crop.TYPE.startswith("relative"):
        return shapes * crop.SIZE
    return np.minimum(shapes, min(crop.SIZE) if crop.TYPE == "absolute_range" else crop.SIZE)
