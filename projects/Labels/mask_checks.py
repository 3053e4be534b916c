"""What masks with a class per pixel look like, before a run learns from them or scores against them."""

import logging
from collections import Counter
from itertools import compress

import numpy as np

from revisit.data.images.image_bytes import WINDOW
from revisit.data.images.opening import strips
from revisit.data.images.reader import is_turned_unseen
from revisit.data.sources.labels import VOID, read_ids, read_labels
from revisit.data.sources.records import Records, ask_each, sample
from revisit.errors import expect, first_few

from detectron2.data import MetadataCatalog

CLOSE = 8  # of two ids: grey levels that tell classes apart by eye lie further from each other
EDGES = 0.2  # of all pixels, at most, are soft edges
LISTED = 20  # classes, at most, whose counts are listed

logger = logging.getLogger(__name__)


def inspect_masks(name: str, records: Records, *, to_learn: bool) -> None:
    """Log how many masks of a sample show each class, and on which share of their pixels; which classes none shows.

    Raises:
        UserError: a mask that cannot be read; white that would be a class; fewer than two classes, or no pixel of more
            than one to learn from.
    """
    metadata = MetadataCatalog.get(name)
    looked_at = sample(records)
    classes = metadata.stuff_classes
    offset = metadata.get("label_offset", 0)
    if not offset:
        _refuse_grey_levels(name, looked_at)
    expect(
        len(classes) > 1,
        f"data set {name!r} has one class, {first_few(classes)}: expected two or more to learn",
    )

    def count(record: dict) -> np.ndarray:
        labels = read_labels(record["sem_seg_file_name"], len(classes), offset, record.get(WINDOW))
        parts = [np.bincount(labels[rows].ravel(), minlength=VOID + 1) for rows in strips(*labels.shape)]
        return np.sum(parts, axis=0)

    pixels = np.array(ask_each(count, looked_at, "reading masks"))  # (masks, 256)
    shares = 100 * pixels.sum(axis=0) / pixels.sum()
    shown = (pixels > 0).sum(axis=0)
    listed = [f"{label} {shown[n]} ({shares[n]:.1f} %)" for n, label in enumerate(classes)][:LISTED]
    logger.info(
        f"{name}: {len(looked_at)} of {len(records)} masks read; masks with a class (its share of all pixels): "
        f"{', '.join(listed)}; void {shown[VOID]} ({shares[VOID]:.1f} %)"
    )
    missing = [label for n, label in enumerate(classes) if not shown[n]]
    lacks = f"data set {name!r}: no pixel of {len(missing)} of {len(classes)} classes: {first_few(missing)}"
    is_whole = to_learn and len(looked_at) == len(records)
    expect(not is_whole or len(missing) < len(classes) - 1, f"{lacks}; expected two or more to learn from")
    if missing:
        logger.warning(lacks)
    _warn_of_turned(name, looked_at)


def _warn_of_turned(name: str, records: Records) -> None:
    """Of images of which no size says whether their masks are as stored or upright, as they are taken."""
    files = list(dict.fromkeys(str(record["file_name"]) for record in records))
    turned = list(compress(files, ask_each(is_turned_unseen, files)))
    if turned:
        logger.warning(
            f"data set {name!r}: {len(turned)} of {len(files)} images looked at are turned by EXIF within their size, "
            f"{first_few(turned)}: their masks are taken as drawn on the upright images"
        )


def _refuse_grey_levels(name: str, records: Records) -> None:
    """Raises UserError where masks are pictures whose white would count as void: of black, white and levels evenly
    between, or of black and white with soft edges.

    Masks are read until they have ids that lie close to each other, which ids of classes do: as a rule the first one.
    """
    pixels: Counter[int] = Counter()
    gaps = np.empty(0)
    for record in records:
        ids, counts = np.unique(read_ids(record["sem_seg_file_name"], record.get(WINDOW)), return_counts=True)
        pixels.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
        gaps = np.diff(sorted(pixels))
        if (gaps < CLOSE).any() and not _has_soft_edges(pixels):
            return
    is_soft = _has_soft_edges(pixels)
    is_even = len(pixels) <= 2 or np.ptp(gaps) <= 2
    ids = [0, VOID] if is_soft else sorted(pixels)
    levels = first_few([str(level) for level in ids]) + " with soft edges between" * is_soft
    numbers = first_few([str(number) for number in range(len(ids))])
    expect(
        not (VOID in pixels and (is_even or is_soft)),
        f"data set {name!r}: masks have no ids but {levels}, of which {VOID} is void, neither learned nor scored: "
        f"write them again with {numbers} in place of them",
    )


def _has_soft_edges(pixels: Counter[int]) -> bool:
    """Whether most pixels, counted by id, are black or white, or nearly so, and some have a light grey."""
    between = sum(count for level, count in pixels.items() if CLOSE <= level <= VOID - CLOSE)
    has_light_ones = any(VOID // 2 < level < VOID for level in pixels)
    return VOID in pixels and has_light_ones and between < EDGES * pixels.total()
