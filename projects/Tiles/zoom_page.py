"""A page that zooms into a scan, with what was found in it, without network or server: next to the folder of tiles."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from projects.Pictures.pages import template
from projects.Pictures.prediction_sheet import class_colors
from projects.Predict.predictions import Predictor
from projects.Tiles.zoom_levels import TILE, Levels
from revisit.boxes.boxes import corners_of
from revisit.errors import printable
from revisit.files import write_whole


def write_page(
    path: Path, levels: Levels, image: Mapping[str, Any], windows: Sequence[Sequence[int]], predictor: Predictor
) -> str:
    """Write the page of an image whose levels are there; returns a line that says how much they take.

    Args:
        image: ``file_name``, and ``objects`` in COCO's result format, by falling scores, classes counted from 0.
        windows: each left, top, right and bottom, px of the image.
    """
    content = content_of(levels, image, windows, predictor.class_names)
    caption = predictor.pixels.caption(f"{levels.width:,} x {levels.height:,} px")
    name = printable(Path(image["file_name"]).name)
    write_whole(path, template("Tiles", "zoom.html").render(name=name, caption=caption, content=content))
    sizes = [tile.stat().st_size for tile in levels.folder.rglob("*.jpg")]
    return f"{path} zooms: {len(sizes):,} tiles below {levels.folder} take {sum(sizes) / 1e6:.0f} MB"


def content_of(
    levels: Levels, image: Mapping[str, Any], windows: Sequence[Sequence[int]], class_names: Sequence[str]
) -> dict[str, Any]:
    """What the page's script reads: flat lists, so that 100,000 objects are 4 MB."""
    objects = image["objects"]
    colors = class_colors(list(class_names)).tolist()
    return {
        "width": levels.width,
        "height": levels.height,
        "tile": TILE,
        "levels": levels.depth,
        "folder": quote(os.fsencode(levels.folder.name)),
        "classes": [{"name": name, "colour": color} for name, color in zip(class_names, colors, strict=True)],
        "boxes": corners_of(objects).round(1).ravel().tolist(),
        "numbers": [each["category_id"] for each in objects],
        "scores": np.round([1000 * each["score"] for each in objects]).astype(int).tolist(),  # thousandths
        "windows": [list(window) for window in windows],
    }
