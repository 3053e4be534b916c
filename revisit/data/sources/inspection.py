"""What a data set must have for a run, and what it looks like: once before the run begins, for any model."""

import logging
from pathlib import Path

from revisit.data.sources.box_inspection import check_masks, inspect_boxes
from revisit.data.sources.catalog import get_records
from revisit.data.sources.class_names import names_of
from revisit.data.sources.mask_inspection import inspect_masks
from revisit.data.sources.records import Records
from revisit.errors import UserError, expect, first_few, translated
from revisit.keys import DETECTORS, Decision, Facts, integer, of_detectron2, value_of

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.evaluation.pascal_voc_evaluation import parse_rec

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


def inspect(cfg: CfgNode, name: str, *, to_learn: bool) -> Records:
    """The records of a data set, checked for a run of ``cfg`` that learns from it or scores against it; what there is
    to say of them is logged.

    Raises:
        MissingDataError: the data set is not on disk.
        UserError: it is not what ``cfg`` needs, or its labels cannot be meant.
    """
    records = get_records(name)
    of_masks = cfg.MODEL.META_ARCHITECTURE == "SemanticSegmentor" and "sem_seg_file_name" in records[0]
    if of_masks:
        inspect_masks(name, records, to_learn=to_learn)
    check_records(cfg, name, records)
    short_side = MetadataCatalog.get(name).get("short_side")
    if short_side and to_learn and cfg.MODEL.META_ARCHITECTURE not in LEARNT_FROM:
        logger.info(f"{name}: images were made smaller, to a short side of {short_side} px")
    if cfg.MODEL.META_ARCHITECTURE in DETECTORS:
        _inspect_detection(cfg, name, records, to_learn)
    return records


def num_classes(cfg: CfgNode) -> int | None:
    """The number of the model's classes; None of a model without classes, or of an unknown one."""
    key = _key_of_classes(cfg)
    return value_of(cfg, key) if key else None


def _key_of_classes(cfg: CfgNode) -> str | None:
    *_, key = LEARNT_FROM.get(cfg.MODEL.META_ARCHITECTURE, (None,))
    return key


def check_records(cfg: CfgNode, name: str, records: Records) -> None:
    """Raises UserError unless records have what MODEL.META_ARCHITECTURE learns from, of as many classes as it has."""
    architecture = cfg.MODEL.META_ARCHITECTURE
    if architecture not in LEARNT_FROM:
        return
    if architecture == "GeneralizedRCNN":
        _check_heads(cfg, name, records)
    field, what, classes, key = LEARNT_FROM[architecture]
    expect(field in records[0], f"data set {name!r} has no {what}, which {architecture} learns from")
    count = len(MetadataCatalog.get(name).get(classes, ())) if classes else None
    if count != num_classes(cfg):
        problem = f"{key} is {num_classes(cfg)}, but data set {name!r} has {count} class{'es' * (count != 1)}"
        remedy = f": add {key} {count} to the command" if count else ""
        raise UserError(problem + remedy)


def _check_heads(cfg: CfgNode, name: str, records: Records) -> None:
    """Raises UserError where a head has nothing to learn from."""
    fields = set().union(*(box for record in records for box in record.get("annotations", ())))
    for switch, needed in (("MASK_ON", "segmentation"), ("KEYPOINT_ON", "keypoints")):
        has_data = needed in fields or not cfg.MODEL[switch]
        expect(has_data, f"MODEL.{switch} is True, but data set {name!r} has no {needed}")


def _inspect_detection(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    metadata = MetadataCatalog.get(name)
    if not to_learn:
        _check_truth(name)
    if cfg.MODEL.MASK_ON and cfg.MODEL.META_ARCHITECTURE == "GeneralizedRCNN":
        check_masks(name, records, cfg.INPUT.MASK_FORMAT, to_learn=to_learn)
    inspect_boxes(name, records, metadata.thing_classes, to_learn=to_learn)
    most = max(len(record["annotations"]) for record in records)
    limit = cfg.TEST.DETECTIONS_PER_IMAGE
    if not to_learn and most > limit:
        message = f"data set {name!r} has images of up to {most} objects, of which {limit} can be found"
        logger.warning(f"{message}: set TEST.DETECTIONS_PER_IMAGE to more")


def _check_truth(name: str) -> None:
    """Whether boxes can be scored against a data set. Raises UserError where they cannot."""
    metadata = MetadataCatalog.get(name)
    whole = metadata.get("subset_of")
    expect(not whole, f"data set {name!r}: boxes are scored against whole files; expected {whole}")
    if metadata.get("evaluator_type") != "pascal_voc":
        return
    check_voc_truth(name, Path(metadata.dirname), metadata.split, metadata.thing_classes)
    if not metadata.get("year_is_known", True):
        unsure = f"data set {name!r}: neither annotations (<folder>VOC2012</folder>) nor path name one year"
        logger.warning(f"{unsure}, so AP is taken at 11 points of recall, as until 2009")


def check_voc_truth(name: str, folder: Path, split: str, classes: list[str]) -> None:
    """Read what Detectron2's evaluator of Pascal VOC will read, as it does, which may be hours later.

    Raises:
        UserError: a split with a byte order mark; an object without ``pose``, ``truncated`` or ``difficult``, with
            fractions of a pixel, or with blanks around its class.
    """
    split_file = folder / "ImageSets" / "Main" / f"{split}.txt"
    text = split_file.read_text()
    marked = f"{split_file} begins with a byte order mark, which the evaluator takes for a part of the first name"
    expect(not text.startswith("\ufeff"), f"{marked}: save it as UTF-8 without one")
    for line in text.splitlines():
        file = folder / "Annotations" / f"{line.strip()}.xml"
        expected = "name, pose, truncated, difficult (0 or 1) and a bndbox in whole pixels of every object"
        with translated(f"data set {name!r}, scored against {file}, which needs {expected}", content=True):
            labels = {thing["name"] for thing in parse_rec(str(file))}
            if not labels <= set(classes):
                raise ValueError(f"class {first_few(sorted(labels - set(classes)))!r}")
