"""Masks of a video in CVAT's XML, "CVAT for video 1.1".

CVAT has no tracks of masks: of a track that begins with a mask it imports the first one alone. So every mask is a
track of one frame, as CVAT itself writes them, and its ``group_id`` says which object it is of.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from pycocotools import mask as coco_mask

from projects.Labels.brush_labels import row_runs


def cvat_lines(name: str, images: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """The lines of a file.

    Args:
        name: of the task.
        images: all frames of a video in order, ``height`` and ``width`` in px, and ``objects`` with ``segmentation`` in
            COCO's run lengths, ``category_id``, which counts ``names`` from 1, and ``track_id``.
    """
    labels = "".join(f"<label><name>{escape(label)}</name></label>" for label in names)
    size = f"<width>{images[0]['width']}</width><height>{images[0]['height']}</height>"
    task = (
        f"<name>{escape(name)}</name><size>{len(images)}</size><mode>interpolation</mode><labels>{labels}</labels>"
        f"<original_size>{size}</original_size>"
    )
    yield '<?xml version="1.0" encoding="utf-8"?>'
    yield "<annotations>"
    yield "  <version>1.1</version>"
    yield f"  <meta><task>{task}</task></meta>"
    objects = ((frame, each) for frame, image in enumerate(images) for each in image["objects"])
    for number, (frame, each) in enumerate(objects):
        label = quoteattr(names[each["category_id"] - 1])
        yield f'  <track id="{number}" label={label} source="auto" group_id="{each["track_id"]}">'
        place = f'frame="{frame}" keyframe="1" outside="0" occluded="0"'
        yield f'    <mask {place} {_attributes(coco_mask.decode(each["segmentation"]))} z_order="0"/>'
        yield "  </track>"
    yield "</annotations>"


def _attributes(mask: np.ndarray) -> str:
    """Of an (H, W) mask of 0 and 1: the box around it, and its run lengths in there, row by row, the first of 0."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    part = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    runs = ", ".join(map(str, row_runs(part).tolist()))
    height, width = part.shape
    return f'rle="{runs}" left="{columns[0]}" top="{rows[0]}" width="{width}" height="{height}"'
