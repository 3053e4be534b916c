"""The windows that a detector looks at in a whole image, and what it has found in one, in px of the image."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from projects.Tiles.merging import Found, Runs, merged, place_mask
from projects.Tiles.tiled_names import tiling_in, whole_of
from projects.Tiles.tiled_sets import KEPT, record_of, sides_in, windows_with_data
from projects.Tiles.window_files import REDUCED, look_at
from projects.Tiles.windows import Tiling
from revisit.boxes.boxes import Boxes, with_sides
from revisit.data.images.image_bytes import WINDOW
from revisit.data.sources.catalog import get_records

from detectron2.structures import Instances

Line = dict[str, Any]  # what was found in a window, as JSON has it


def windows_to_test(image: dict, tiling: Tiling) -> list[dict]:
    """Records of all windows of an image's record in which there are data, row by row; last the whole image, reduced to
    a tile, for what is larger than a window.

    Raises UserError for a file whose windows cannot be read.
    """
    file = str(image["file_name"])
    scan = look_at(file)
    kept, without = windows_with_data(file, scan, tiling)
    fields = {field: image[field] for field in (*KEPT, "image_id") if field in image} | sides_in(tiling) | {REDUCED: 1}
    records = [record_of(fields, window) for window in kept.tolist()]
    if len(kept) + without == 1:
        return records
    times = -(-max(scan.height, scan.width) // tiling.side)
    return [*records, record_of(fields | {REDUCED: times}, (0, 0, scan.width, scan.height), times)]


def windows_of_set(name: str) -> list[dict]:
    """Those of all images of a data set of windows. Raises as ``windows_to_test``."""
    tiling = tiling_in(name)
    return [record for image in get_records(whole_of(name)) for record in windows_to_test(image, tiling)]


def line_of(record: dict, objects: Instances, height: int, width: int) -> Line:
    """What was found in a window, whose boxes are in its own px, in those of its image of (height, width)."""
    found, times, (left, top, right, bottom) = Boxes.of_instances(objects), record.get(REDUCED, 1), record[WINDOW]
    xyxy = found.xyxy.astype(np.float64) * times + (left, top, left, top)
    xyxy = np.minimum(xyxy, (right, bottom, right, bottom))
    seen = np.flatnonzero((xyxy[:, 2:] > xyxy[:, :2]).all(axis=1))  # and not in what is padded
    line = {
        WINDOW: list(record[WINDOW]),
        "boxes": xyxy[seen].tolist(),
        "scores": found.scores[seen].tolist(),
        "classes": found.classes[seen].tolist(),
    }
    if found.masks is not None:
        shown = found.masks[:, : record["height"], : record["width"]]
        line["masks"] = [_placed(shown[n], found.xyxy[n], record, height, width) for n in seen]
    return line


def _placed(mask: np.ndarray, xyxy: np.ndarray, record: dict, height: int, width: int) -> Runs:
    """Run lengths in the whole image of a mask in a window, of which no more than its box is made larger."""
    times, (left, top, right, bottom) = record.get(REDUCED, 1), record[WINDOW]
    x, y = np.floor(xyxy[:2]).astype(int).clip(0)
    x_end, y_end = np.ceil(xyxy[2:]).astype(int)
    part = mask[y:y_end, x:x_end].repeat(times, axis=0).repeat(times, axis=1)
    left, top = left + x * times, top + y * times
    return _in_json(place_mask(part[: bottom - top, : right - left], left, top, height, width))


def _in_json(mask: Runs) -> Runs:
    return {**mask, "counts": mask["counts"].decode()}


def objects_of_lines(lines: Sequence[Line], height: int, width: int, nms: float) -> Iterator[dict]:
    """Objects of a whole image, in COCO's result format but for the image's id, classes counted from 0, by falling
    scores: what its windows' lines say, merged.

    Args:
        nms: IoU above which the better of two boxes of a class stays.
    """
    counts = [len(line["boxes"]) for line in lines]
    masks = [mask for line in lines for mask in line.get("masks", ())]
    found = Found(
        boxes=np.concatenate([np.reshape(line["boxes"], (-1, 4)) for line in lines]),
        scores=np.concatenate([np.array(line["scores"], float) for line in lines]),
        classes=np.concatenate([np.array(line["classes"], int) for line in lines]),
        origins=np.repeat(np.arange(len(lines)), counts),
        masks=masks or None,
    )
    found = merged(found, np.array([line[WINDOW] for line in lines]), height, width, nms)
    for place, box in enumerate(with_sides(found.boxes).tolist()):
        one = {"category_id": int(found.classes[place]), "bbox": box, "score": float(found.scores[place])}
        yield one if found.masks is None else one | {"segmentation": _in_json(found.masks[place])}
