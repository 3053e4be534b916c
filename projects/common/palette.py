"""The colours of the ids in masks with a palette, as Pascal VOC fixed them and DAVIS took them over."""

import numpy as np
from PIL import Image


def voc_colours() -> np.ndarray:
    """Pascal VOC's colour of each id, uint8 (256, 3) RGB.

    The id's bits go to red, green and blue in turn, its lowest ones to the colours' highest.
    """
    ids = np.arange(256)
    colours = np.zeros((256, 3), np.uint8)
    for place in range(8):
        bits = ids[:, None] >> (3 * place + np.arange(3)) & 1
        colours |= (bits << (7 - place)).astype(np.uint8)
    return colours


_BYTES = voc_colours().tobytes()


def palette_image(ids: np.ndarray) -> Image.Image:
    """A picture of (H, W) uint8 ids in these colours, which stores the ids themselves."""
    image = Image.fromarray(ids)
    image.putpalette(_BYTES)
    return image
