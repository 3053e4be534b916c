"""What a data set must have for a run, looked at once before it begins, for any model; plug-ins look at its labels."""

import logging

from revisit.data.sources.catalog import get_records
from revisit.data.sources.class_names import names_of
from revisit.data.sources.coco_truth import keypoints_seen
from revisit.data.sources.records import Records, shared_pairs, such_as
from revisit.data.sources.subsets import is_labelled
from revisit.errors import UserError, expect, first_few
from revisit.keys import Decision, Facts, architecture_of, integer, network_of, of_detectron2, value_of

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from fvcore.common.registry import Registry

MOST_UNREADABLE = 0.01  # share of the images to learn from: for so many, others may stand in

IMAGE_CHECK_REGISTRY = Registry("IMAGE_CHECK")
IMAGE_CHECK_REGISTRY.__doc__ = """
Looks at the files of a data set before a run: functions as in LABEL_CHECK_REGISTRY. Where ``to_learn`` is false, no
image may be replaced by another one.
"""

LABEL_CHECK_REGISTRY = Registry("LABEL_CHECK")
LABEL_CHECK_REGISTRY.__doc__ = """
Looks at the labels of a data set before a run learns from it or scores against it: functions of the config, the name
and the records of the data set, and ``to_learn``. Each logs what is doubtful, and raises UserError for what cannot be
meant.
"""

logger = logging.getLogger(__name__)

# By meta-architecture: the field of a record that it learns from, in words, and where data set and model have classes.
LEARNT_FROM = {
    "GeneralizedRCNN": ("annotations", "boxes", "thing_classes", "MODEL.ROI_HEADS.NUM_CLASSES"),
    "RetinaNet": ("annotations", "boxes", "thing_classes", "MODEL.RETINANET.NUM_CLASSES"),
    "SemanticSegmentor": ("sem_seg_file_name", "masks", "stuff_classes", "MODEL.SEM_SEG_HEAD.NUM_CLASSES"),
    "DepthEstimator": ("depth_file_name", "depth maps", None, None),
}


def classes_of_data(cfg: CfgNode, facts: Facts) -> Decision | None:
    """As many classes as the first data set to learn from has, where a model's number of classes is 0."""
    if facts.key != _key_of_classes(cfg) or num_classes(cfg) or not cfg.DATASETS.TRAIN:
        return None
    name = cfg.DATASETS.TRAIN[0]
    try:
        get_records(name)
    except UserError:
        return None  # what inspects the data says what is wrong
    classes = names_of(name)
    return Decision(len(classes), f"classes of {name}: {first_few(classes)}") if classes else None


of_detectron2(
    *(key for *_, key in LEARNT_FROM.values() if key),
    rule=integer(0, unit="classes; 0: as many as the data have"),
    resolve=classes_of_data,
    off=0,
)


def is_learned_from(cfg: CfgNode, record: dict) -> bool:
    """Whether a finetuning shows an image to the network. It leaves out images of boxes that have none, with
    DATALOADER.FILTER_EMPTY_ANNOTATIONS, and those with fewer keypoints than MIN_KEYPOINTS_PER_IMAGE."""
    if "annotations" not in record:
        return True
    least = cfg.MODEL.ROI_KEYPOINT_HEAD.MIN_KEYPOINTS_PER_IMAGE if cfg.MODEL.KEYPOINT_ON else 0
    if least and keypoints_seen(record["annotations"]) < least:
        return False
    return is_labelled(record) or not cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS  # Detectron2 would know no BACKGROUND


def inspect(cfg: CfgNode, name: str, *, to_learn: bool) -> Records:
    """The records of a data set, checked for a run of ``cfg`` that learns from it or scores against it; what there is
    to say of them is logged.

    Raises:
        MissingDataError: the data set is not on disk.
        UserError: it is not what ``cfg`` needs, or its labels cannot be meant.
    """
    records = get_records(name)
    for _, check in LABEL_CHECK_REGISTRY:
        check(cfg, name, records, to_learn)
    check_records(cfg, name, records)
    short_side = MetadataCatalog.get(name).get("short_side")
    if short_side and to_learn and architecture_of(cfg) not in LEARNT_FROM:
        logger.info(f"{name}: images were made smaller, to a short side of {short_side} px")
    return records


def warn_of_shared(learned: Records, where: str, tested: Records, test: str, effect: str) -> None:
    """Warn of images of the data set ``test`` that are learned from ``where``, too, with its ``effect`` and names."""
    if pairs := shared_pairs(learned, tested):
        which = f"{len(pairs):,} of {len(tested):,} images of {test} are in {where}, too"
        logger.warning(f"{which}: {effect}{such_as(pairs)}")


def num_classes(cfg: CfgNode) -> int | None:
    """The number of the model's classes; None of a model without classes, or of an unknown one."""
    key = _key_of_classes(cfg)
    return value_of(cfg, key) if key else None


def _key_of_classes(cfg: CfgNode) -> str | None:
    *_, key = LEARNT_FROM.get(architecture_of(cfg), (None,))
    return key


def check_records(cfg: CfgNode, name: str, records: Records) -> None:
    """Raises UserError unless records have what MODEL.META_ARCHITECTURE learns from, of as many classes as it has."""
    architecture = architecture_of(cfg)
    if architecture not in LEARNT_FROM:
        return
    if architecture == "GeneralizedRCNN":
        _check_heads(cfg, name, records)
    field, what, classes, key = LEARNT_FROM[architecture]
    expect(field in records[0], f"data set {name!r} has no {what}, which {architecture} learns from")
    count = len(MetadataCatalog.get(name).get(classes, ())) if classes else None
    if count != num_classes(cfg):
        problem = f"{key} is {num_classes(cfg)}, but data set {name!r} has {count} class{'es' * (count != 1)}"
        around = network_of(cfg).around
        other = f", or {around} of another network than {architecture}" if around else ""
        remedy = f": add {key} {count} to the command{other}" if count else ""
        raise UserError(problem + remedy)


def _check_heads(cfg: CfgNode, name: str, records: Records) -> None:
    """Raises UserError where a head has nothing to learn from."""
    fields = set().union(*(box for record in records for box in record.get("annotations", ())))
    for switch, needed in (("MASK_ON", "segmentation"), ("KEYPOINT_ON", "keypoints")):
        has_data = needed in fields or not cfg.MODEL[switch]
        expect(has_data, f"MODEL.{switch} is True, but data set {name!r} has no {needed} of use")
    if cfg.MODEL.KEYPOINT_ON and name in cfg.DATASETS.TRAIN:
        named, count = MetadataCatalog.get(name).get("keypoint_names", ()), cfg.MODEL.ROI_KEYPOINT_HEAD.NUM_KEYPOINTS
        problem = f"MODEL.KEYPOINT_ON is True, but data set {name!r} names {len(named)} keypoints of {count}"
        expected = "keypoint_names and keypoint_flip_map in the metadata that a module of IMPORTS sets"
        expect(len(named) == count, f"{problem} (MODEL.ROI_KEYPOINT_HEAD.NUM_KEYPOINTS): expected {expected}")
