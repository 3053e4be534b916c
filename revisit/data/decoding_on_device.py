"""The images of a batch decoded, cut and resized on the model's device (DATALOADER.DECODE_ON_DEVICE).

A worker then only reads files and draws boxes and looks. JPEGs travel as their bytes, other images as pixels.
"""

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.io import ImageReadMode, decode_jpeg

from revisit.data.images.reader import Picture
from revisit.devices import send
from revisit.errors import first_line
from revisit.keys import SWITCH, declare

from detectron2.utils.logger import log_first_n

declare(
    "DATALOADER.DECODE_ON_DEVICE",
    False,
    "Workers read files and draw; the GPU decodes JPEGs (nvJPEG), cuts, resizes and applies the looks, as with "
    "DATALOADER.AUGMENT_ON_DEVICE. It needs VIEWS.RESAMPLING antialias. Not measured on a GPU yet.",
    SWITCH,
    may_change=True,
    read_by="Pretraining",
)
AT_A_TIME = 32  # images that are decoded in memory together


class Uncut(NamedTuple):
    """The images of a batch, of which no views have been cut."""

    data: Tensor  # (bytes,) uint8, on the host: all images, one after the other
    shapes: list[tuple[int, ...]]  # of each: (bytes,) of a JPEG, (H, W, 3) of RGB pixels
    boxes: np.ndarray  # (B, 2 + N, 4) whole px: of the anchor, the positive and the small positives
    views: dict[str, tuple[int, ...]]  # shapes of an image's views, by name


def cut(uncut: Uncut, device: torch.device | str) -> dict[str, Tensor]:
    """The views of a batch by name, as the loader has them (ViewBatch), on ``device``.

    Raises:
        UnreadableImageError: a JPEG that neither the device nor the host can decode.
    """
    count = len(uncut.shapes)
    room = {name: torch.empty((count, *shape), dtype=torch.uint8, device=device) for name, shape in uncut.views.items()}
    views = {name: tensor.movedim(-1, -3) for name, tensor in room.items()}
    parts = uncut.data.split([math.prod(shape) for shape in uncut.shapes])
    images = [part.view(shape) for part, shape in zip(parts, uncut.shapes, strict=True)]
    for start in range(0, count, AT_A_TIME):
        for n, image in enumerate(_decoded(images[start : start + AT_A_TIME], device), start):
            places = [views["anchor"][n], views["positive"][n], *(views["small"][n] if "small" in views else ())]
            cut_into(places, image, uncut.boxes[n].tolist())
    return views


def cut_into(places: Sequence[Tensor], image: Tensor, boxes: Sequence[Sequence[int]]) -> None:
    """``crop_and_resize`` of each box of a (3, H, W) uint8 image into its (3, S, S) uint8 place, rounded once."""
    image = image.float().add_(0.5)[None]  # copying to uint8 cuts the fraction off
    for place, (x0, y0, x1, y1) in zip(places, boxes, strict=True):
        crop = image[..., y0:y1, x0:x1]
        place.copy_(F.interpolate(crop, size=place.shape[-2:], mode="bilinear", antialias=True)[0])


def _decoded(images: list[Tensor], device: torch.device | str) -> list[Tensor]:
    """(3, H, W) uint8 on ``device`` of each image."""
    jpegs = [image for image in images if image.ndim == 1]
    try:
        decoded = iter(decode_jpeg(jpegs, ImageReadMode.RGB, device) if jpegs else [])
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # of any of them
        message = "the device cannot decode some JPEGs, which the host decodes instead, with others beside"
        log_first_n(logging.WARNING, f"{message}: {first_line(error)}", name=__name__, key="message")
        decoded = (send(Picture(jpeg.numpy().tobytes(), "a JPEG").decode(), device).movedim(-1, 0) for jpeg in jpegs)
    return [next(decoded) if image.ndim == 1 else send(image, device).movedim(-1, 0) for image in images]
