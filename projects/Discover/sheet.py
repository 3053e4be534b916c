"""A sheet of images with the boxes and masks that were found."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as run_lengths

from projects.Pictures.prediction_sheet import draw_objects
from projects.Pictures.tiles import evenly_spread, gallery, save_sheet
from revisit.boxes.boxes import Boxes
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import picture_of

IMAGES, COLUMNS = 12, 3
SHOWN = 8  # objects of an image
TINY = 1e-12  # a score that is none


def save_found(path: Path, images: Sequence[dict[str, Any]], pixels: PixelFormat) -> None:
    """Draw the best objects of images from all over the data set."""
    spread = evenly_spread(len(images), IMAGES)
    tiles = [_drawn(images[index], pixels) for index in spread]
    rows = gallery(tiles, (), min(COLUMNS, len(tiles)))
    save_sheet(path, rows, title="Found without labels", subtitle=pixels.caption(f"the best {SHOWN}"))


def _drawn(image: dict[str, Any], pixels: PixelFormat) -> np.ndarray:
    objects = image["objects"][:SHOWN]
    found = Boxes.of_results([{"category_id": 0, **each} for each in objects])
    masks = [run_lengths.decode(each["segmentation"]) for each in objects if "segmentation" in each]
    relative = found.scores / found.scores.max(initial=TINY)
    drawn = replace(found, scores=relative, masks=np.array(masks) if masks else None)
    return draw_objects(picture_of(image, pixels), drawn, ["object"])
