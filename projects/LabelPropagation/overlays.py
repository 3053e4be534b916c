"""A moving picture of a video with its objects painted, to judge by eye."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from projects.common.palette import voc_colours
from revisit.files import written_whole
from revisit.viz.prediction_sheet import fit, paint_classes


def paint_objects(frame: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The (H, W, 3) uint8 RGB frame with every object in its colour, and PANEL px on its longer side."""
    painted = paint_classes(frame, ids, voc_colours())
    painted[ids == 0] = frame[ids == 0]
    return fit(painted)


def save_animation(path: Path, pictures: list[np.ndarray], frames_per_second: float) -> None:
    """Write (h, w, 3) uint8 RGB pictures of one size as an endless GIF."""
    first, *rest = (Image.fromarray(picture).quantize(method=Image.Quantize.FASTOCTREE) for picture in pictures)
    with written_whole(path) as temporary:
        first.save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=rest,
            duration=round(1000 / frames_per_second),
            loop=0,
        )
