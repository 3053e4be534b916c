"""Resize images, or a box of one to a view (VIEWS.RESAMPLING), each channel as if it were alone."""

from collections.abc import Callable
from functools import partial

import cv2
import numpy as np
import torch
from torch.nn import functional as F

from revisit.keys import declare, one_of

declare(
    "VIEWS.RESAMPLING",
    "area",
    "How crops are resized. area: halved by means of 2 x 2 pixels, then bilinear, the faster one. antialias: PIL's "
    "bilinear filter, as in the authors' code.",
    one_of("area", "antialias"),
    read_by="Pretraining",
)


def crop_and_resize(image: np.ndarray, box: np.ndarray, size: int) -> np.ndarray:
    """Cut ``box`` from an (H, W, C) uint8 image and resize it to (size, size, C).

    Bilinear with antialiasing, on uint8: PIL's filter, which the paper's code uses. Both round after each axis, so each
    lies within about one grey level of the exact values.
    """
    x0, y0, x1, y1 = box
    # A crop whose strides are those of a channels-last batch is neither taken apart into channels nor put together.
    crop = torch.from_numpy(image)[None, y0:y1, x0:x1].permute(0, 3, 1, 2)
    resized = F.interpolate(crop, size=(size, size), mode="bilinear", antialias=True)[0].permute(1, 2, 0).numpy()
    return np.ascontiguousarray(resized)


def crop_and_reduce(image: np.ndarray, box: np.ndarray, size: int) -> np.ndarray:
    """As ``crop_and_resize``, by a cheaper filter.

    The crop is halved, every 2 x 2 pixels by their mean, until the root of its area is below 1.5 ``size``. Pixels that
    the halvings do not divide are left out on both sides alike. What is left is bilinear without antialiasing.
    """
    x0, y0, x1, y1 = box.tolist()
    return each_alone(partial(_reduced, size=size), image[y0:y1, x0:x1])


def _reduced(crop: np.ndarray, size: int) -> np.ndarray:
    rows, columns = crop.shape[:2]
    block = 1
    while (rows // block) * (columns // block) >= (1.5 * size) ** 2 and min(rows, columns) >= 2 * block:
        block *= 2
    height = rows // block
    width = columns // block
    left = columns % block // 2
    top = rows % block // 2
    crop = crop[top : top + block * height, left : left + block * width]
    while block > 1:
        block //= 2
        # Of all blocks OpenCV has vector instructions for those of 2 x 2 alone.
        crop = cv2.resize(crop, (block * width, block * height), interpolation=cv2.INTER_AREA)
    return cv2.resize(crop, (size, size), interpolation=cv2.INTER_LINEAR)


def resize(image: np.ndarray, size: tuple[int, int], interpolation: int) -> np.ndarray:
    """An (H, W, C) uint8 image in (width, height) px, by OpenCV's INTER_AREA or INTER_LINEAR."""
    return each_alone(partial(cv2.resize, dsize=size, interpolation=interpolation), image)


def each_alone(change: Callable[[np.ndarray], np.ndarray], image: np.ndarray) -> np.ndarray:
    """What ``change``, which calls OpenCV, makes of each channel alone, (h, w, C).

    OpenCV 5.0 resizes 3 and 4 channels by INTER_AREA and INTER_LINEAR to the same. Of 2, and of more than 4, it rounds
    the means of 2 x 2 pixels otherwise; of more than 4 warpAffine moves pixels elsewhere, and some methods raise.
    """
    if image.shape[2] in (3, 4):
        return change(image)
    planes = np.ascontiguousarray(image.transpose(2, 0, 1))
    return np.stack([change(plane) for plane in planes], axis=-1)


RESAMPLERS = {"area": crop_and_reduce, "antialias": crop_and_resize}  # VIEWS.RESAMPLING
