"""Objects that are found in windows of images, in px of the whole images: ``tiles:TILING:NAME``."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from pycocotools import mask as run_lengths

from projects.Discover.ranking import OVERLAP
from projects.Pictures.tiles import PANEL
from projects.Tiles.tested_windows import line_of, objects_of_lines, windows_to_test
from projects.Tiles.window_files import REDUCED, look_at
from projects.Tiles.windows import Tiling
from revisit.boxes.boxes import corners_of
from revisit.data.images.image_bytes import WINDOW
from revisit.data.sources.coco_truth import check_countable
from revisit.data.sources.records import Records
from revisit.errors import translated

from detectron2.structures import Boxes, Instances


def windows_of_images(images: Records, tiling: Tiling) -> list[dict]:
    """Records of all windows in which there are data, and of each image the whole, reduced, for what is larger.

    Raises UserError for files whose windows cannot be read, and for more px than masks can have.
    """
    records = []
    for image in images:
        file = str(image["file_name"])
        scan = look_at(file)
        with translated(file, content=True):
            check_countable(scan.height, scan.width)
        records += windows_to_test(image, tiling)
    return records


def in_whole_images(images: Records, records: Sequence[dict], found: Sequence[dict], count: int) -> Iterator[dict]:
    """Images with ``height`` and ``width``, px, and at most ``count`` of the ``objects`` of their windows, merged, best
    first. Those of which a window could not be read are left out.

    Args:
        records: of all windows.
        found: those that could be read, with what was found in each, in its own px.
    """
    of_file = defaultdict(list)
    for window in found:
        of_file[window["file_name"]].append(window)
    counts = Counter(record["file_name"] for record in records)
    for image in images:
        file = image["file_name"]
        windows = of_file[file]
        if len(windows) == counts[file]:
            height, width, _ = look_at(str(file))
            lines = [line_of(window, _instances(window), height, width) for window in windows]
            best = islice(objects_of_lines(lines, height, width, OVERLAP), count)
            objects = [one | {"category_id": 1} for one in best]
            yield {**image, "height": height, "width": width, "objects": objects}


def _instances(window: dict) -> Instances:
    """As of a detector of one class."""
    objects, size = window["objects"], (window["height"], window["width"])
    masks = [run_lengths.decode(each["segmentation"]) for each in objects]
    return Instances(
        size,
        pred_boxes=Boxes(torch.from_numpy(corners_of(objects))),
        scores=torch.tensor([each["score"] for each in objects], dtype=torch.float64),
        pred_classes=torch.zeros(len(objects), dtype=torch.long),
        pred_masks=torch.from_numpy(np.array(masks, bool).reshape(-1, *size)),
    )


def to_look_at(image: dict) -> dict[str, Any]:
    """An image with its objects' boxes, reduced so that a picture of it is small."""
    height, width = image["height"], image["width"]
    times = max(1, max(height, width) // PANEL)
    boxes = [{**each, "bbox": [side / times for side in each["bbox"]]} for each in image["objects"]]
    objects = [{key: each[key] for key in ("bbox", "score")} for each in boxes]
    return {**image, WINDOW: (0, 0, width, height), REDUCED: times, "objects": objects}
