"""What is looked at for each kind of network, in the core's LABEL_CHECK_REGISTRY."""

import logging

from projects.Labels.box_checks import check_fit, check_masks, inspect_boxes
from projects.Labels.mask_checks import inspect_masks
from projects.Labels.truth import check_truth
from revisit.data.sources.inspection import LABEL_CHECK_REGISTRY, check_records
from revisit.data.sources.records import Records
from revisit.keys import DETECTORS, architecture_of

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

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
    masks_are_learned = cfg.MODEL.MASK_ON and architecture_of(cfg) == "GeneralizedRCNN"
    if masks_are_learned:
        check_masks(name, records, cfg.INPUT.MASK_FORMAT, to_learn=to_learn)
    inspect_boxes(name, records, MetadataCatalog.get(name).thing_classes, to_learn=to_learn)
    if masks_are_learned:
        check_fit(name, records)
    if not to_learn:
        _warn_of_many(name, records, cfg.TEST.DETECTIONS_PER_IMAGE)


def _warn_of_many(name: str, records: Records, limit: int) -> None:
    most = max(len(record["annotations"]) for record in records)
    if most > limit:
        message = f"data set {name!r} has images of up to {most} objects, of which {limit} can be found"
        logger.warning(f"{message}: set TEST.DETECTIONS_PER_IMAGE to more")
