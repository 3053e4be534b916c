"""AutoAugment's ImageNet policy: torchvision's tables, its operations on arrays and on batches of tensors.

Every operation takes images and a magnitude as torchvision's AutoAugment gives it. Array operations equal PIL's, which
torchvision uses: those of a table of values and those that move pixels to the bit, the others within two grey levels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import AutoAugment, InterpolationMode
from torchvision.transforms.autoaugment import _apply_op
from torchvision.transforms.v2 import functional as F

from revisit.data.colour import brightness, contrast, saturation

_torchvision = AutoAugment()
_MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
NUM_POLICIES = len(_torchvision.policies)


def operations(
    policy: int, probabilities: tuple[float, float], signs: tuple[int, int], size: int
) -> list[tuple[str, float]]:
    """The operations that a draw comes to, in order, with their magnitudes: at most two.

    Args:
        policy: which of the NUM_POLICIES sub-policies.
        probabilities: an operation runs if its number is at most its probability.
        signs: 0 negates a signed magnitude.
        size: of the square image, px.
    """
    result = []
    for drawn, sign, (name, probability, level) in zip(
        probabilities, signs, _torchvision.policies[policy], strict=True
    ):
        if drawn <= probability:
            magnitudes, signed = _levels(size)[name]
            magnitude = 0.0 if level is None else magnitudes[level]
            result.append((name, -magnitude if signed and sign == 0 else magnitude))
    return result


@functools.cache
def _levels(size: int) -> dict[str, tuple[list[float], bool]]:
    space = _torchvision._augmentation_space(10, (size, size))
    return {name: (levels.double().flatten().tolist(), signed) for name, (levels, signed) in space.items()}


def apply_to_array(image: np.ndarray, name: str, magnitude: float) -> np.ndarray:
    """One operation on an (H, W, 3) uint8 array."""
    if name in _MOVES:
        return np.asarray(_apply_op(Image.fromarray(image), name, magnitude, InterpolationMode.NEAREST, None))
    return _ARRAY[name](image, magnitude)


def apply_to_batch(images: Tensor, name: str, magnitude: float) -> Tensor:
    """One operation on (M, 3, S, S) uint8 images, on any device, without waiting for it."""
    if name in _MOVES:
        return _move(images, *_sources(name, magnitude, images.shape[-1]))
    return _BATCH[name](images, magnitude)


def _sources(name: str, magnitude: float, size: int) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """(a, b, c) so that a place (x, y) shows what lies at a x + b y + c, for the column and for the row."""
    if name == "Rotate":
        cos, sin, centre = math.cos(math.radians(magnitude)), math.sin(math.radians(magnitude)), size / 2
        return (cos, -sin, centre * (1 - cos + sin)), (sin, cos, centre * (1 - cos - sin))
    along_x = {"ShearX": (1.0, magnitude, 0.0), "TranslateX": (1.0, 0.0, -float(int(magnitude)))}
    along_y = {"ShearY": (magnitude, 1.0, 0.0), "TranslateY": (0.0, 1.0, -float(int(magnitude)))}
    return along_x.get(name, (1.0, 0.0, 0.0)), along_y.get(name, (0.0, 1.0, 0.0))


def _move(images: Tensor, column: tuple[float, float, float], row: tuple[float, float, float]) -> Tensor:
    """The nearest pixel, by PIL's arithmetic in 1/65536 px (torchvision's tensors are off); black from outside."""
    size = images.shape[-1]
    places = torch.arange(size, device=images.device)
    x, y = (
        (_fixed(a) * places + _fixed(b) * places[:, None] + _fixed(c + (a + b) / 2)) >> 16 for a, b, c in (column, row)
    )
    inside = (x >= 0) & (x < size) & (y >= 0) & (y < size)
    return images[..., y.clamp(0, size - 1), x.clamp(0, size - 1)] * inside


def _fixed(value: float) -> int:
    return math.floor(value * 65536 + 0.5)


def _sharpness(image: np.ndarray, magnitude: float) -> np.ndarray:
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
    smooth = image.copy()  # PIL leaves the outermost pixels alone
    smooth[1:-1, 1:-1] = cv2.filter2D(image, -1, kernel)[1:-1, 1:-1]
    return cv2.addWeighted(image, 1 + magnitude, smooth, -magnitude, 0.0)


def _by_table(table: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return lambda image: cv2.LUT(image, table.astype(np.uint8))


def _by_histogram(table: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray, float], np.ndarray]:
    """An operation that gives every channel a table made from its histogram, (256,) int64."""

    def apply(image: np.ndarray, magnitude: float) -> np.ndarray:
        counts = [cv2.calcHist([image], [c], None, [256], [0, 256]).ravel().astype(np.int64) for c in range(3)]
        tables = np.stack([table(count) for count in counts], axis=-1)
        return cv2.LUT(image, np.clip(tables, 0, 255).astype(np.uint8)[None])

    return apply


def _auto_contrast(counts: np.ndarray) -> np.ndarray:
    (present,) = np.nonzero(counts)
    low, high = int(present[0]), int(present[-1])
    if high <= low:
        return np.arange(256)
    scale = 255.0 / (high - low)
    return (np.arange(256) * scale - low * scale).astype(np.int64)


def _equalize(counts: np.ndarray) -> np.ndarray:
    present = counts[counts > 0]
    step = (counts.sum() - present[-1]) // 255
    if len(present) < 2 or not step:
        return np.arange(256)
    return (step // 2 + np.cumsum(counts) - counts) // step


_VALUES = np.arange(256)
_ARRAY: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "Brightness": lambda image, m: brightness(image, 1 + m),
    "Color": lambda image, m: saturation(image, 1 + m),
    "Contrast": lambda image, m: contrast(image, 1 + m),
    "Sharpness": _sharpness,
    "Posterize": lambda image, m: _by_table(_VALUES & ~(2 ** (8 - int(m)) - 1))(image),
    "Solarize": lambda image, m: _by_table(np.where(m > _VALUES, _VALUES, 255 - _VALUES))(image),
    "Invert": lambda image, m: 255 - image,
    "AutoContrast": _by_histogram(_auto_contrast),
    "Equalize": _by_histogram(_equalize),
}
_BATCH: dict[str, Callable[[Tensor, float], Tensor]] = {
    "Brightness": lambda images, m: F.adjust_brightness(images, 1 + m),
    "Color": lambda images, m: F.adjust_saturation(images, 1 + m),
    "Contrast": lambda images, m: F.adjust_contrast(images, 1 + m),
    "Sharpness": lambda images, m: F.adjust_sharpness(images, 1 + m),
    "Posterize": lambda images, m: F.posterize(images, int(m)),
    "Solarize": lambda images, m: F.solarize(images, m),
    "Invert": lambda images, m: F.invert(images),
    "AutoContrast": lambda images, m: F.autocontrast(images),
    "Equalize": lambda images, m: F.equalize(images),
}
NAMES = (*_MOVES, *_ARRAY)
