"""What a data set must have for a run, and what it looks like: once before the run begins, for any model."""

import logging
from collections import Counter
from pathlib import Path

import numpy as np

from revisit.data.images.opening import strips
from revisit.data.images.reader import read_size
from revisit.data.sources.catalog import get_records
from revisit.data.sources.labels import VOID, read_ids, read_labels
from revisit.data.sources.records import Records, ask_each, sample
from revisit.errors import UserError, expect, first_few, translated
from revisit.keys import DETECTORS, value_of

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.evaluation.pascal_voc_evaluation import parse_rec
from detectron2.structures import BoxMode

MARGIN = 1.0  # px that a box may reach over the edge of its image, as rounding makes it
MOST_DOUBLED = 0.1  # of all boxes; few are slips of whoever drew them
CLOSE = 8  # of two ids: grey levels that tell classes apart by eye lie further from each other
EDGES = 0.2  # of all pixels, at most, are soft edges
LISTED = 20  # classes, at most, whose counts are listed

logger = logging.getLogger(__name__)

# By meta-architecture: the field of a record that it learns from, in words, and where data set and model have classes.
LEARNT_FROM = {
    "GeneralizedRCNN": ("annotations", "boxes", "thing_classes", "MODEL.ROI_HEADS.NUM_CLASSES"),
    "RetinaNet": ("annotations", "boxes", "thing_classes", "MODEL.RETINANET.NUM_CLASSES"),
    "SemanticSegmentor": ("sem_seg_file_name", "masks", "stuff_classes", "MODEL.SEM_SEG_HEAD.NUM_CLASSES"),
    "DepthEstimator": ("depth_file_name", "depth maps", None, None),
}


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
    *_, key = LEARNT_FROM.get(cfg.MODEL.META_ARCHITECTURE, (None,))
    return value_of(cfg, key) if key else None


def check_records(cfg: CfgNode, name: str, records: Records) -> None:
    """Raises UserError unless records have what MODEL.META_ARCHITECTURE learns from, of as many classes as it has."""
    model = cfg.MODEL
    if model.META_ARCHITECTURE not in LEARNT_FROM:
        return
    for switch, needed in (("MASK_ON", "segmentation"), ("KEYPOINT_ON", "keypoints")):
        boxes = (box for record in records for box in record.get("annotations", ()))
        is_needed = model.META_ARCHITECTURE == "GeneralizedRCNN" and model[switch]
        if is_needed and not any(needed in box for box in boxes):
            raise UserError(f"MODEL.{switch} is True, but data set {name!r} has no {needed}")
    field, what, classes, key = LEARNT_FROM[model.META_ARCHITECTURE]
    if field not in records[0]:
        raise UserError(f"data set {name!r} has no {what}, which {model.META_ARCHITECTURE} learns from")
    count = len(MetadataCatalog.get(name).get(classes, ())) if classes else None
    if count != num_classes(cfg):
        message = f"{key} is {num_classes(cfg)}, but data set {name!r} has {count} class{'es' * (count != 1)}"
        raise UserError(message + (f": add {key} {count} to the command" if count else ""))


def inspect_masks(name: str, records: Records, *, to_learn: bool) -> None:
    """Log how many masks of a sample show each class, and on which share of their pixels; which classes none shows.

    Raises:
        UserError: a mask that cannot be read; white that would be a class; fewer than two classes, or no pixel of more
            than one to learn from.
    """
    metadata, looked_at = MetadataCatalog.get(name), sample(records)
    classes, offset = metadata.stuff_classes, metadata.get("label_offset", 0)
    if not offset:
        _refuse_grey_levels(name, looked_at)
    expect(
        len(classes) > 1,
        f"data set {name!r} has one class, {first_few(classes)}: expected two, or nothing is told apart",
    )

    def count(record: dict) -> np.ndarray:
        labels = read_labels(record["sem_seg_file_name"], len(classes), offset)
        parts = [np.bincount(labels[rows].ravel(), minlength=VOID + 1) for rows in strips(*labels.shape)]
        return np.sum(parts, axis=0)

    pixels = np.array(ask_each(count, looked_at, "reading masks"))  # (masks, 256)
    shares, shown = 100 * pixels.sum(axis=0) / pixels.sum(), (pixels > 0).sum(axis=0)
    listed = [f"{label} {shown[n]} ({shares[n]:.1f} %)" for n, label in enumerate(classes)][:LISTED]
    seen = f"{name}: {len(looked_at)} of {len(records)} masks read; masks with a class (its share of all pixels): "
    logger.info(f"{seen}{', '.join(listed)}; void {shown[VOID]} ({shares[VOID]:.1f} %)")
    missing = [label for n, label in enumerate(classes) if not shown[n]]
    lacks = f"data set {name!r}: no pixel of {len(missing)} of {len(classes)} classes: {first_few(missing)}"
    is_whole = to_learn and len(looked_at) == len(records)
    expect(not is_whole or len(missing) < len(classes) - 1, f"{lacks}; expected two or more to learn from")
    if missing:
        logger.warning(lacks)


def _refuse_grey_levels(name: str, records: Records) -> None:
    """Raises UserError where masks are pictures whose white would count as void: of black, white and levels evenly
    between, or of black and white with soft edges.

    Masks are read until they have ids that lie close to each other, which ids of classes do: as a rule the first one.
    """
    pixels: Counter[int] = Counter()
    gaps = np.empty(0)
    for record in records:
        ids, counts = np.unique(read_ids(record["sem_seg_file_name"]), return_counts=True)
        pixels.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
        gaps = np.diff(sorted(pixels))
        if (gaps < CLOSE).any() and not _has_soft_edges(pixels):
            return
    is_soft = _has_soft_edges(pixels)
    is_even = len(pixels) <= 2 or np.ptp(gaps) <= 2
    ids = [0, VOID] if is_soft else sorted(pixels)
    levels = first_few([str(level) for level in ids]) + " with soft edges between" * is_soft
    numbers = first_few([str(number) for number in range(len(ids))])
    found = f"data set {name!r}: masks have no ids but {levels}, of which {VOID} is void, neither learned nor scored"
    expect(not (VOID in pixels and (is_even or is_soft)), f"{found}: write them again with {numbers} in place of them")


def _has_soft_edges(pixels: Counter[int]) -> bool:
    """Whether most pixels, counted by id, are black or white, or nearly so, and some have a light grey."""
    between = sum(count for level, count in pixels.items() if CLOSE <= level <= VOID - CLOSE)
    has_light_ones = any(VOID // 2 < level < VOID for level in pixels)
    return VOID in pixels and has_light_ones and between < EDGES * pixels.total()


def _inspect_detection(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    metadata = MetadataCatalog.get(name)
    if not to_learn and metadata.get("subset_of"):
        raise UserError(f"data set {name!r}: boxes are scored against whole files; expected {metadata.subset_of}")
    if not to_learn and metadata.get("evaluator_type") == "pascal_voc":
        check_voc_truth(name, Path(metadata.dirname), metadata.split, metadata.thing_classes)
        if not metadata.get("year_is_known", True):
            unsure = f"data set {name!r}: neither annotations (<folder>VOC2012</folder>) nor path name one year"
            logger.warning(f"{unsure}, so AP is taken at 11 points of recall, as until 2009")
    if cfg.MODEL.MASK_ON and cfg.MODEL.META_ARCHITECTURE == "GeneralizedRCNN":
        check_masks(name, records, cfg.INPUT.MASK_FORMAT, to_learn=to_learn)
    inspect_boxes(name, records, metadata.thing_classes, to_learn=to_learn)
    most, found = max(len(record["annotations"]) for record in records), cfg.TEST.DETECTIONS_PER_IMAGE
    if not to_learn and most > found:
        message = f"data set {name!r} has images of up to {most} objects, of which {found} can be found"
        logger.warning(f"{message}: set TEST.DETECTIONS_PER_IMAGE to more")


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


def check_masks(name: str, records: Records, mask_format: str, *, to_learn: bool) -> None:
    """Raises UserError unless all boxes have masks, to learn from in INPUT.MASK_FORMAT."""
    boxes = [(record, box) for record in records for box in record["annotations"]]
    boxes = [(record, box) for record, box in boxes if not (to_learn and box.get("iscrowd", 0))]
    masks = [box.get("segmentation") for _, box in boxes]
    kinds = {"no mask that can be drawn": [mask is None for mask in masks]}
    expected = "expected outlines of three points and more, or run lengths, of all; or MODEL.MASK_ON False"
    if to_learn and mask_format != "bitmask":
        kinds["run lengths"] = [isinstance(mask, dict) for mask in masks]
    for what, have in kinds.items():
        if any(have):
            record, box = boxes[have.index(True)]
            example = f"such as {box['bbox']} in {record['file_name']}"
            way_out = "set INPUT.MASK_FORMAT bitmask" if what == "run lengths" else expected
            raise UserError(f"data set {name!r}: {sum(have)} of {len(have)} boxes have {what}, {example}: {way_out}")


def inspect_boxes(name: str, records: Records, classes: list[str], *, to_learn: bool) -> None:
    """Log how many boxes there are in Detectron2's records, per class, and which are doubtful, each kind by one.

    Raises:
        UserError: images that are not of the size that their annotation has; boxes that cannot be meant: not finite,
            of negative size, all on a scale of 0 to 1; no box to learn from.
    """
    _check_sizes(name, records)
    boxes = [(record, box) for record in records for box in record["annotations"]]
    kept = Counter(box["category_id"] for _, box in boxes if not box.get("iscrowd", 0))
    listed = [f"{label} {kept[n]}" for n, label in enumerate(classes)][:LISTED]
    empty = sum(not record["annotations"] for record in records)
    fate = "left out, unless DATALOADER.FILTER_EMPTY_ANNOTATIONS is False"
    fate = fate if to_learn else "whatever is found on them counts as wrong"
    summary = f"{name}: {len(records)} images, {empty} of them without boxes{f' ({fate})' * bool(empty)}; "
    ignored = len(boxes) - kept.total()
    summary += f"{kept.total()} boxes{f', and {ignored} of crowds or difficult ones' * bool(ignored)}: "
    logger.info(summary + ", ".join(listed))
    for line in MetadataCatalog.get(name).get("left_out", ()):
        logger.warning(f"data set {name!r}: {line}")
    if not kept:
        message = f"data set {name!r} has no box" + (f" but {ignored} of crowds or difficult ones" if boxes else "")
        if to_learn:
            raise UserError(f"{message}: expected annotations to learn from")
        logger.warning(f"{message}: nothing can be scored against it")
        return
    doubts = _doubts(name, boxes)
    if missing := [label for n, label in enumerate(classes) if not kept[n]]:
        doubts.append(f"no box of {len(missing)} of {len(classes)} classes: {first_few(missing)}")
    for doubt in doubts:
        logger.warning(f"data set {name!r}: {doubt}")


def _check_sizes(name: str, records: Records) -> None:
    """Compare the sizes of a sample of the images with those of their annotations, both upright."""
    for record in sample(records):
        annotated = {side: record[side] for side in ("height", "width") if side in record}
        if annotated and annotated != (size := read_size(record["file_name"])):
            sizes = " and its annotation ".join("{width} x {height} px".format(**sides) for sides in (size, annotated))
            raise UserError(
                f"data set {name!r}: {record['file_name']} has {sizes} (width x height, upright as EXIF turns it): "
                "write the image's size, and its boxes"
            )


def _doubts(name: str, boxes: list[tuple[dict, dict]]) -> list[str]:
    """What is doubtful about boxes, each after its image's record. Raises UserError for boxes that cannot be meant."""
    corners = np.array([box["bbox"] for _, box in boxes], np.float64)  # (N, 4) px
    with_sizes = np.array([box["bbox_mode"] == BoxMode.XYWH_ABS for _, box in boxes], bool)
    corners[with_sizes, 2:] += corners[with_sizes, :2]
    sides = [(image.get("width", np.nan), image.get("height", np.nan)) for image, _ in boxes]
    (x0, y0, x1, y1), (width, height) = corners.T, np.array(sides, np.float64).T

    def example(wrong: np.ndarray) -> str:
        first = int(np.flatnonzero(wrong)[0])
        box, file = ", ".join(f"{value:g}" for value in corners[first]), boxes[first][0]["file_name"]
        return f"{int(wrong.sum())} of {len(wrong)} boxes, such as x0, y0, x1, y1 = {box} in {file}"

    impossible = {
        "not finite": ~np.isfinite(corners).all(axis=1),
        "of negative width or height": (x1 < x0) | (y1 < y0),
        "within 0 and 1, so shares of the image": np.full(len(x0), corners.max() <= 1),
    }
    for problem, wrong in impossible.items():
        if wrong.any():
            message = f"data set {name!r}: {example(wrong)}, {problem}"
            raise UserError(f"{message}: expected x0 <= x1 and y0 <= y1, in pixels")
    outside = (x1 > width + MARGIN) | (y1 > height + MARGIN) | (x0 < -MARGIN) | (y0 < -MARGIN)
    hint = "are these x0, y0, x1, y1, where x, y, width, height are expected?"
    kinds = {f"reach out of their images: {hint}": outside, "without area, left out": (x1 == x0) | (y1 == y0)}
    doubled = _doubled(boxes)
    kinds["twice, so that one of the two cannot be found"] = doubled
    if doubled.mean() > MOST_DOUBLED:
        message = f"data set {name!r}: {example(doubled)}, are doubles of others of their class"
        raise UserError(f"{message}: expected every object once; were two files joined?")
    return [f"{example(wrong)}, {problem}" for problem, wrong in kinds.items() if wrong.any()]


def _doubled(boxes: list[tuple[dict, dict]]) -> np.ndarray:
    """(N,) bool: which boxes stand earlier in their image already, with their class."""
    keys = [(id(image), box["category_id"], box.get("iscrowd", 0), *box["bbox"]) for image, box in boxes]
    first = dict(zip(reversed(keys), reversed(range(len(keys))), strict=True))
    return np.array([first[key] < place for place, key in enumerate(keys)])
