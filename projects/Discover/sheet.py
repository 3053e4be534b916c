"""A sheet of images with the boxes that were found."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from projects.Pictures.prediction_sheet import RANKS, draw_ranked
from projects.Pictures.tiles import gallery, save_sheet
from revisit.boxes.boxes import corners_of
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import picture_of
from revisit.data.sources.records import sample

IMAGES, COLUMNS = 12, 2  # on a telephone the lines of a third column would be too thin
LEGEND = {place: (str(place + 1), color) for place, (color, _) in enumerate(RANKS)}


def save_found(path: Path, images: Sequence[dict[str, Any]], pixels: PixelFormat) -> None:
    """Draw the best objects of images from all over the data set."""
    spread = sample(range(len(images)), IMAGES)
    tiles = [_drawn(images[index], pixels) for index in spread]
    rows = [row._replace(legend=LEGEND) for row in gallery(tiles, (), min(COLUMNS, len(tiles)))]
    save_sheet(path, rows, title="Found without labels", subtitle=pixels.caption(f"the best {len(RANKS)}, by colour"))


def _drawn(image: dict[str, Any], pixels: PixelFormat) -> np.ndarray:
    return draw_ranked(picture_of(image, pixels), corners_of(image["objects"]))
