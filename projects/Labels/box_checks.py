"""What boxes look like, before a run learns from them or scores against them."""

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
from pycocotools import mask as coco_mask

from projects.Labels.mask_checks import LISTED
from revisit.boxes.boxes import IOU, Boxes, corners_of, iou_of_pairs
from revisit.data.images.image_bytes import WINDOW
from revisit.data.images.reader import UNKNOWN_SIZE, other_size, size_if_known
from revisit.data.sources.records import Records, keeping_all, sample
from revisit.data.sources.subsets import BACKGROUND
from revisit.errors import UserError, expect, first_few

from detectron2.data import MetadataCatalog

MARGIN = 1.0  # px that a box may reach over the edge of its image, as rounding makes it
MOST_SLIPS = 0.1  # of all boxes; few are slips of whoever drew them
CORNER = 2.0  # px from the first one, within which boxes in shares of 1 lie
SAME, ALIKE = 1 - 1e-6, 0.81  # IoU of two boxes: the same; of 10 px, and a pixel apart
FITS, LOOSE = 0.8, 2.0  # IoU of a box with the rectangle around its mask, whose sides may be so many px away

logger = logging.getLogger(__name__)

Annotations = list[tuple[dict, dict]]  # each after the record of its image


def check_masks(name: str, records: Records, mask_format: str, *, to_learn: bool) -> None:
    """Raises UserError unless all boxes have masks, to learn from in INPUT.MASK_FORMAT."""
    boxes = _boxes_used(records, to_learn)
    masks = [box.get("segmentation") for _, box in boxes]
    problem = _problem(
        name,
        boxes,
        [mask is None for mask in masks],
        "no mask that can be drawn",
        "expected outlines of three points and more, or run lengths, of all; or MODEL.MASK_ON False",
    )
    if to_learn and mask_format != "bitmask" and not problem:
        have_runs = [isinstance(mask, dict) for mask in masks]
        problem = _problem(name, boxes, have_runs, "run lengths", "set INPUT.MASK_FORMAT bitmask")
    expect(not problem, problem)


def check_keypoints(name: str, records: Records, count: int, *, to_learn: bool) -> None:
    """Raises UserError unless all boxes have ``count`` keypoints, each x, y and whether it is seen."""
    boxes = _boxes_used(records, to_learn)
    lacking = [len(box.get("keypoints") or ()) != 3 * count for _, box in boxes]
    problem = _problem(
        name,
        boxes,
        lacking,
        f"not the {count} keypoints of MODEL.ROI_KEYPOINT_HEAD",
        f"expected x, y and 0, 1 or 2 of each, {3 * count} numbers; or MODEL.KEYPOINT_ON False",
    )
    expect(not problem, problem)


def _boxes_used(records: Records, to_learn: bool) -> Annotations:
    """The boxes of records; of those to learn from without crowds, which a detector does not learn."""
    return [(record, box) for record, box in _boxes_of(records) if not (to_learn and box.get("iscrowd", 0))]


def check_fit(name: str, records: Records) -> None:
    """Warn of masks that lie elsewhere than their boxes, in which they are learned and found. Raises UserError where
    most do."""
    boxes = [(record, box) for record, box in _boxes_of(records) if "segmentation" in box]
    corners = Boxes.of_annotations([box for _, box in boxes]).xyxy
    around = _around([box["segmentation"] for _, box in boxes])
    around = np.where(np.abs(around - corners) <= LOOSE, corners, around)
    fits = iou_of_pairs(around, corners)
    remedy = "expected those of their object, in px of the image"
    if problem := _problem(name, boxes, (fits < FITS).tolist(), "a mask that lies elsewhere", remedy):
        expect(np.median(fits) >= IOU, problem)
        logger.warning(problem)


def _around(masks: Sequence[Sequence | dict]) -> np.ndarray:
    """(N, 4) x0, y0, x1, y1 px around outlines, or around run lengths."""
    around = np.empty((len(masks), 4))
    have_runs = np.array([isinstance(mask, dict) for mask in masks], bool)
    if have_runs.any():
        runs = coco_mask.toBbox([masks[n] for n in np.flatnonzero(have_runs)])
        around[have_runs] = corners_of([{"bbox": box} for box in runs])
    outlines = [[*chain.from_iterable(masks[n])] for n in np.flatnonzero(~have_runs)]
    if outlines:
        points = np.fromiter(chain.from_iterable(outlines), float).reshape(-1, 2)
        starts = np.cumsum([0, *map(len, outlines[:-1])]) // 2
        around[~have_runs, :2] = np.minimum.reduceat(points, starts)
        around[~have_runs, 2:] = np.maximum.reduceat(points, starts)
    return around


def _problem(name: str, boxes: Annotations, wrong: Sequence[bool], what: str, remedy: str) -> str:
    """A line about boxes with ``what``, "" where there is none."""
    if not any(wrong):
        return ""
    record, box = boxes[wrong.index(True)]
    return (
        f"data set {name!r}: {sum(wrong)} of {len(wrong)} boxes have {what}, such as {box['bbox']} in "
        f"{record['file_name']}: {remedy}"
    )


def _boxes_of(records: Records) -> Annotations:
    return [(record, box) for record in records for box in record["annotations"]]


@keeping_all()
def inspect_boxes(name: str, records: Records, classes: list[str], *, to_learn: bool) -> None:
    """Log how many boxes there are in Detectron2's records, per class, and which are doubtful, each kind by one.

    Raises:
        UserError: images that are not of the size that their annotation has; boxes that cannot be meant: not finite,
            of negative size, on a scale of 0 to 1, or twice; no box to learn from.
    """
    _check_sizes(name, records)
    boxes = _boxes_of(records)
    kept = Counter(box["category_id"] for _, box in boxes if not box.get("iscrowd", 0))
    ignored = len(boxes) - kept.total()
    _log_counts(name, records, [f"{label} {kept[n]}" for n, label in enumerate(classes)], kept, ignored, to_learn)
    for line in MetadataCatalog.get(name).get("left_out", ()):
        logger.warning(f"data set {name!r}: {line}")
    if not kept:
        but = f" but {ignored} of crowds or difficult ones" if boxes else ""
        problem = f"data set {name!r} has no box{but}"
        expect(not to_learn, f"{problem}: expected annotations to learn from")
        logger.warning(f"{problem}: nothing can be scored against it")
        return
    sized = [(image, box) for image, box in boxes if not UNKNOWN_SIZE.items() <= image.items()]
    for doubt in _doubts(name, sized) if sized else ():
        logger.warning(f"data set {name!r}: {doubt}")
    if missing := [label for n, label in enumerate(classes) if not kept[n]]:
        logger.warning(f"data set {name!r}: no box of {len(missing)} of {len(classes)} classes: {first_few(missing)}")


def _log_counts(
    name: str, records: Records, listed: list[str], kept: Counter[int], ignored: int, to_learn: bool
) -> None:
    empty = sum(not record["annotations"] and not (to_learn and BACKGROUND in record) for record in records)
    fate = "whatever is found on them counts as wrong"
    if to_learn:
        fate = "left out, unless DATALOADER.FILTER_EMPTY_ANNOTATIONS is False"
    without = f"{empty} of them without boxes" + f" ({fate})" * bool(empty)
    boxes = f"{kept.total()} boxes" + f", and {ignored} of crowds or difficult ones" * bool(ignored)
    logger.info(f"{name}: {len(records)} images, {without}; {boxes}: {', '.join(listed[:LISTED])}")


def _check_sizes(name: str, records: Records) -> None:
    """Compare the sizes of a sample of the images with those of their annotations, both upright."""
    for record in sample(records):
        annotated = {side: record[side] for side in ("height", "width") if side in record and WINDOW not in record}
        size = size_if_known(record["file_name"]) if annotated else UNKNOWN_SIZE
        if size not in (annotated, UNKNOWN_SIZE):
            raise UserError(f"data set {name!r}: {other_size(record, size, annotated)}")


def _doubts(name: str, boxes: Annotations) -> list[str]:
    """What is doubtful about boxes. Raises UserError for boxes that cannot be meant."""
    corners = Boxes.of_annotations([box for _, box in boxes]).xyxy
    sides = [[image.get(side, np.nan) for image, _ in boxes] for side in ("width", "height")]
    x0, y0, x1, y1 = corners.T
    width, height = np.array(sides, np.float64)

    def example(wrong: np.ndarray) -> str:
        first = int(np.flatnonzero(wrong)[0])
        box = ", ".join(f"{value:g}" for value in corners[first])
        file = boxes[first][0]["file_name"]
        return f"{wrong.sum()} of {len(wrong)} boxes, such as x0, y0, x1, y1 = {box} in {file}"

    in_shares = (np.abs(corners) <= CORNER).all(axis=1)
    impossible = {
        "not finite": ~np.isfinite(corners).all(axis=1),
        "of negative width or height": (x1 < x0) | (y1 < y0),
        "in the first two pixels, so shares of the image": in_shares & (in_shares.mean() > MOST_SLIPS),
    }
    for problem, wrong in impossible.items():
        if wrong.any():
            raise UserError(
                f"data set {name!r}: {example(wrong)}, {problem}: expected x0 <= x1 and y0 <= y1, in pixels"
            )
    overlap = _overlap_with_earlier(boxes, corners)
    doubled = overlap >= SAME
    if doubled.mean() > MOST_SLIPS:
        raise UserError(
            f"data set {name!r}: {example(doubled)}, are doubles of others of their class: expected every object once; "
            "were two files joined?"
        )
    reach_out = (x1 > width + MARGIN) | (y1 > height + MARGIN) | (x0 < -MARGIN) | (y0 < -MARGIN)
    hint = ": are these x0, y0, x1, y1, where x, y, width, height are expected?" * int(reach_out.mean() > MOST_SLIPS)
    doubtful = {
        f"reach out of their images{hint}": reach_out,
        "without area, left out": (x1 == x0) | (y1 == y0),
        "in the first two pixels: are these shares of the image?": in_shares,
        "twice, so that one of the two cannot be found": doubled,
        f"nearly twice, by an IoU of {ALIKE} or more within a class: one of the two cannot be found": (
            (overlap >= ALIKE) & ~doubled
        ),
    }
    return [f"{example(wrong)}, {problem}" for problem, wrong in doubtful.items() if wrong.any()]


def _overlap_with_earlier(boxes: Annotations, corners: np.ndarray) -> np.ndarray:
    """(N,) the highest IoU of each box with those that stand earlier in its image, of its class."""
    keys = ((id(image), box["category_id"], box.get("iscrowd", 0)) for image, box in boxes)
    numbers = np.fromiter(chain.from_iterable(keys), int).reshape(-1, 3)  # a list of them takes six times as much
    _, groups = np.unique(numbers, axis=0, return_inverse=True)
    order = np.argsort(groups, kind="stable")
    in_group = np.arange(len(order)) - np.searchsorted(groups[order], groups[order])
    highest = np.zeros(len(boxes))
    places = np.flatnonzero(in_group)
    for back in range(1, 1 + in_group.max()):
        places = places[in_group[places] >= back]
        later, earlier = order[places], order[places - back]
        highest[later] = np.maximum(highest[later], iou_of_pairs(corners[later], corners[earlier]))
    return highest
