"""``tiles:1024+128@0.5:NAME``: windows of the images of a data set NAME, for images too large for one look.

A record is a window of its ``file_name``: left, top, right and bottom in px of the file, inside the image.
"""

import logging
import os
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from projects.Pixels.samples import Scan
from projects.Tiles.cutting import cut
from projects.Tiles.label_maps import show_labels, void_of
from projects.Tiles.tiled_names import TILES, tiling_and_name
from projects.Tiles.window_files import look_at, read_window
from projects.Tiles.windows import Tiling, inside, windows
from revisit.data.images.image_bytes import PADDED, SEEN, WINDOW, UnreadableImageError
from revisit.data.sources.catalog import get_records, metadata_of_part
from revisit.data.sources.file_names import expect_file_names
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.data.sources.records import CHANNEL_FILES, LABEL_FILES, WITHOUT_LABELS, ask_each, sample
from revisit.data.sources.subsets import BACKGROUND, is_labelled, is_looked_at
from revisit.errors import expect
from revisit.progress import progress

from detectron2.data import MetadataCatalog
from detectron2.utils.logger import log_first_n

MOST_MISSING = 0.5  # share of a window's pixels without data, above which it is left out
# Fields of an image that its windows have too.
KEPT = ("file_name", "label", WITHOUT_LABELS, CHANNEL_FILES, *LABEL_FILES)
_SCORED_WHOLE = {
    "coco": "coco_tiles",
    "sem_seg": "sem_seg_tiles",
    "cityscapes_sem_seg": "sem_seg_tiles",
    "depth": "depth_tiles",
}  # types of evaluators
EMPTY_SHARE = 1.0  # of windows without objects, to be learned from, for each with some


def load_tiles(*parts: str) -> LabelledSet:
    """Windows of each image with their labels, row by row; those of mostly no data, by what the file marks, are left
    out and counted, and so are those of a map of labels that shows no class or depth there. Of those that show no
    object, evenly spread, some are BACKGROUND to learn from, by EMPTY_SHARE.

    Raises:
        UserError: no tiling; images that are no files of their own, or whose windows cannot be read or not be labelled.
    """
    tiling, name = _tiling_and_name(parts)
    images = get_records(name)
    named = f"{TILES}:{tiling}:{name}"
    expect_file_names(images, named)
    files = [str(image["file_name"]) for image in images]
    scans = ask_each(look_at, files, "looking at the sizes of images")
    records, left_out, void, of_void = [], 0, 0, void_of(metadata_of_part(name))
    every = zip(images, files, scans, strict=True)
    for image, file, scan in progress("cutting", "image", every, total=len(files)):
        kept, without = windows_with_data(file, scan, tiling)
        left_out += without
        shown = kept[show_labels(image, kept, scan, of_void)]
        void += len(kept) - len(shown)
        records += windows_of(image, shown, scan, tiling)
    and_label = ", and a label" * bool(void)
    expect(records, f"{named}: no window has data in more than half of its pixels{and_label}")
    share = f"; {left_out:,} more are left out, in which more than half of the pixels have no data" * bool(left_out)
    share += f"; {void:,} more, of whose pixels none has a label" * bool(void)
    message = f"{named}: {len(records):,} windows of {tiling.side} px in {len(images):,} images{share}"
    log_first_n(logging.INFO, message + _choose_background(records), name=__name__, key="message")
    return LabelledSet(records, metadata_of_tiles(*parts))


def windows_of(image: dict, places: np.ndarray, scan: Scan, tiling: Tiling) -> list[dict]:
    """A record of each window of an image, in px of which its annotations are.

    Args:
        image: the record of a whole image.
        places: (n, 4) left, top, right and bottom, px, inside the image.
        tiling: by which they are cut.

    Raises:
        UserError: the image has another size than its record, so that its labels lie elsewhere.
    """
    fields = {field: image[field] for field in KEPT if field in image} | sides_in(tiling)
    records = [record_of(fields, window) for window in places.tolist()]
    if "annotations" in image:
        stated = (image.get("height", scan.height), image.get("width", scan.width))
        sizes = f"{image['file_name']} has {scan.width} x {scan.height} px, and its labels {stated[1]} x {stated[0]}"
        expect(stated == scan[:2], f"{sizes}: expected labels of the file as it is")
        for record, annotations in zip(records, cut(image["annotations"], places, *stated), strict=True):
            record["annotations"] = annotations
    return records


def _choose_background(records: list[dict]) -> str:
    """Mark windows without objects that are learned from; returns words for how many."""
    looked_at = [record for record in records if "annotations" in record and is_looked_at(record)]
    empty = [record for record in looked_at if not is_labelled(record)]
    shown = len(looked_at) - len(empty)
    background = sample(empty, round(EMPTY_SHARE * shown))
    for record in background:
        record[BACKGROUND] = True
    words = f"; {shown:,} show objects, and of {len(empty):,} others {len(background):,} teach the background"
    return words if looked_at else ""


def _tiling_and_name(parts: Sequence[str]) -> tuple[Tiling, str]:
    """A name of a data set has colons of its own, at the last of which the parts were separated."""
    return tiling_and_name(":".join((TILES, *parts)))


def record_of(fields: dict, window: Sequence[int], times: int = 1) -> dict:
    """Of a window, seen so many times smaller, with ``fields``."""
    left, top, right, bottom = window
    size = {"height": -(-(bottom - top) // times), "width": -(-(right - left) // times)}
    return fields | {WINDOW: tuple(window)} | size


def sides_in(tiling: Tiling) -> dict[str, int]:
    """Fields of a window's record: px that it is filled up to, and as how many a network of every pixel sees these."""
    return {PADDED: tiling.side} | ({SEEN: tiling.tile} if tiling.scale != 1 else {})


def windows_with_data(file: str, scan: Scan, tiling: Tiling) -> tuple[np.ndarray, int]:
    """(n, 4) windows of a file inside its image, of those that it marks most pixels of as having no data none, and how
    many these are."""
    places = inside(windows(scan.height, scan.width, *tiling), scan.height, scan.width)
    kept = places[_has_data(file, os.stat(file).st_mtime_ns, scan, tiling)] if scan.has_marks else places
    return kept, len(places) - len(kept)


@lru_cache(maxsize=4096)
def _has_data(file: str, time: int, scan: Scan, tiling: Tiling) -> np.ndarray:
    """(n,) bool, of each window of an image that marks pixels: whether most of them have data. What cannot be read is
    kept, so that who reads it says why."""

    def has_data(window: list[int]) -> bool:
        try:
            missing = read_window(file, tuple(window)).missing
        except UnreadableImageError:
            return True
        return missing is None or missing.mean() <= MOST_MISSING

    places = inside(windows(scan.height, scan.width, *tiling), scan.height, scan.width)
    return np.array(ask_each(has_data, places.tolist(), f"looking for pixels without data in {os.path.basename(file)}"))


def metadata_of_tiles(*parts: str) -> dict:
    """Detectron2's of the data set that is cut, which is scored on whole images."""
    metadata = metadata_of_part(_tiling_and_name(parts)[1])
    kind = metadata.get("evaluator_type")
    return metadata | ({"evaluator_type": _SCORED_WHOLE[kind]} if kind in _SCORED_WHOLE else {})


def is_scored_whole(name: str) -> bool:
    """Whether a data set of windows, or of some of them, asks for scores on whole images."""
    return MetadataCatalog.get(name).get("evaluator_type") in _SCORED_WHOLE.values()


LABEL_LAYOUT_REGISTRY.register(LabelLayout(TILES, "SIZE:NAME", load_tiles, metadata_of_tiles, texts=("SIZE", "NAME")))
