"""An animation of a video with its objects painted, to look at."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from projects.common.palette import voc_colours
from revisit.files import written_whole
from revisit.viz.tiles import fit

OPACITY = 0.6


def paint_objects(frame: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The (H, W, 3) uint8 RGB frame with each object of the (H, W) ids in its colour, PANEL px on its longer side."""
    painted = cv2.addWeighted(frame, 1 - OPACITY, voc_colours()[ids], OPACITY, 0)
    return fit(np.where(ids[..., None] > 0, painted, frame))


def save_animation(path: Path, pictures: list[np.ndarray], frames_per_second: float) -> None:
    """Write (h, w, 3) uint8 RGB pictures of one size as an endless GIF."""
    first, *rest = (Image.fromarray(picture).quantize(method=Image.Quantize.FASTOCTREE) for picture in pictures)
    options = {"save_all": True, "append_images": rest, "duration": round(1000 / frames_per_second), "loop": 0}
    with written_whole(path) as temporary:
        first.save(temporary, format="GIF", **options)
