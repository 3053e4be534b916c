"""Cut a box from an image and resize it to a square: as the paper's code does, or by a cheaper filter."""

import cv2
import numpy as np
import torch
from torch.nn import functional as F


def crop_and_resize(image: np.ndarray, box: np.ndarray, size: int) -> np.ndarray:
    """Cut ``box`` from an (H, W, 3) uint8 image and resize it to (size, size, 3).

    Bilinear with antialiasing, on uint8: within one grey level of PIL's filter, which the paper's code uses.
    """
    x0, y0, x1, y1 = box
    crop = torch.from_numpy(image[y0:y1, x0:x1]).permute(2, 0, 1)[None]
    resized = F.interpolate(crop, size=(size, size), mode="bilinear", antialias=True)
    return np.ascontiguousarray(resized[0].permute(1, 2, 0).numpy())


def crop_and_reduce(image: np.ndarray, box: np.ndarray, size: int, out: np.ndarray | None = None) -> np.ndarray:
    """As ``crop_and_resize``, by a cheaper filter: what pretraining's views are made with.

    Each axis is first divided by the whole number next to its scale, every block of pixels by its mean; what is left,
    a scale between 2/3 and 3/2, is bilinear without antialiasing. Pixels of the box that fill no block, less than one
    block, are left out on both sides alike. The result is written into ``out`` where that is given.
    """
    x0, y0, x1, y1 = box
    x0, columns = _blocks(x0, x1, size)
    y0, rows = _blocks(y0, y1, size)
    crop = image[y0 : y0 + rows[0] * rows[1], x0 : x0 + columns[0] * columns[1]]
    if rows[1] > 1 or columns[1] > 1:
        crop = cv2.resize(crop, (columns[0], rows[0]), interpolation=cv2.INTER_AREA)
    return cv2.resize(crop, (size, size), out, interpolation=cv2.INTER_LINEAR)


def _blocks(low: int, high: int, size: int) -> tuple[int, tuple[int, int]]:
    """Where the blocks of one axis begin, how many there are, and how many pixels each has."""
    length = int(high - low)
    block = max(1, (2 * length + size) // (2 * size))
    return int(low) + length % block // 2, (length // block, block)
