"""Looks on (H, W, 3) uint8 RGB arrays: PIL's operations, fast.

Colours are within a grey level of the exact ones. AutoAugment's operations take a magnitude as torchvision's do, and
equal PIL's, which torchvision uses: those of a table of values and those that move pixels to the bit, the others within
two grey levels.
"""

from collections.abc import Callable

import cv2
import numpy as np
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.autoaugment import _apply_op

from revisit.data.views.augmentation import AutoAugmentLook, Look


def apply_look(image: np.ndarray, look: Look) -> np.ndarray:
    """The augmented square image, same shape and dtype; ``image`` itself is left alone."""
    if isinstance(look, AutoAugmentLook):
        image = cv2.flip(image, 1) if look.flip else image
        for name, magnitude in look.operations(len(image)):
            image = apply_operation(image, name, magnitude)
        return image
    for operation, factor in look.jitter:
        image = _JITTER[operation](image, factor)
    if look.grey:
        image = _greyscale(image)
    if look.blur_sigma:
        image = _gaussian_blur(image, look.blur_sigma)
    return cv2.flip(image, 1) if look.flip else image


def apply_operation(image: np.ndarray, name: str, magnitude: float) -> np.ndarray:
    """One of AutoAugment's operations."""
    if name in _OPERATIONS:
        return _OPERATIONS[name](image, magnitude)
    return np.asarray(_apply_op(Image.fromarray(image), name, magnitude, InterpolationMode.NEAREST, None))


def _contrast(image: np.ndarray, factor: float) -> np.ndarray:
    """Distances from the mean grey times ``factor`` >= 0."""
    mean_grey = int(cv2.mean(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))[0] + 0.5)
    return _blend(image, factor, mean_grey)


def _saturation(image: np.ndarray, factor: float) -> np.ndarray:
    """Distances from the pixel's own grey times ``factor`` >= 0."""
    return cv2.addWeighted(image, factor, _greyscale(image), 1.0 - factor, 0.0)


def _hue(image: np.ndarray, turns: float) -> np.ndarray:
    """HSV's hue moved by a share of the circle."""
    # In float: HSV in uint8, as PIL does it, is off by up to 10 grey levels, and hardly faster.
    hsv = cv2.cvtColor(image.astype(np.float32), cv2.COLOR_RGB2HSV)
    # OpenCV wraps angles above 360 degrees, not those below 0.
    cv2.add(hsv, (360.0 * (turns % 1.0), 0.0, 0.0, 0.0), hsv)
    return cv2.convertScaleAbs(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB))


def _greyscale(image: np.ndarray) -> np.ndarray:
    """Luma in all three channels."""
    return cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)


def _gaussian_blur(image: np.ndarray, sigma: float) -> np.ndarray:
    """Blurred by ``sigma`` > 0 px, the kernel cut at three sigma, the border mirrored."""
    # cv2.GaussianBlur on uint8 computes in fixed point, the same on all machines, in twice the time.
    kernel = cv2.getGaussianKernel(2 * round(3 * sigma) + 1, sigma, cv2.CV_32F)
    return cv2.sepFilter2D(image, -1, kernel, kernel)


def _blend(image: np.ndarray, factor: float, base: float = 0.0) -> np.ndarray:
    """``base + factor * (value - base)``, by a table, clipped and truncated as PIL's blend does."""
    table = base + factor * (_LEVELS - base)
    return cv2.LUT(image, table.clip(0, 255, out=table).astype(np.uint8))


def _sharpness(image: np.ndarray, magnitude: float) -> np.ndarray:
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
    smooth = image.copy()  # PIL leaves the outermost pixels alone
    smooth[1:-1, 1:-1] = cv2.filter2D(image, -1, kernel)[1:-1, 1:-1]
    return cv2.addWeighted(image, 1 + magnitude, smooth, -magnitude, 0.0)


def _by_histogram(image: np.ndarray, tables_of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Every channel by its table: (256, 3) int64, made from as many counts of values."""
    counts = [cv2.calcHist([image], [channel], None, [256], [0, 256]).ravel() for channel in range(3)]
    tables = tables_of(np.stack(counts, axis=1).astype(np.int64))
    return cv2.LUT(image, tables.clip(0, 255).astype(np.uint8)[None])


def _auto_contrast(counts: np.ndarray) -> np.ndarray:
    present = counts > 0
    low, high = present.argmax(0), 255 - present[::-1].argmax(0)
    scale = 255.0 / np.maximum(high - low, 1)
    stretched = (_LEVELS[:, None] * scale - low * scale).astype(np.int64)
    return np.where(high > low, stretched, _VALUES[:, None])


def _equalize(counts: np.ndarray) -> np.ndarray:
    brightest = 255 - (counts[::-1] > 0).argmax(0)
    step = (counts.sum(0) - counts[brightest, range(3)]) // 255
    equalized = (step // 2 + counts.cumsum(0) - counts) // np.maximum(step, 1)
    return np.where(step > 0, equalized, _VALUES[:, None])


_VALUES = np.arange(256, dtype=np.uint8)
_LEVELS = np.arange(256, dtype=np.float64)
_OPERATIONS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "Brightness": lambda image, m: _blend(image, 1 + m),
    "Color": lambda image, m: _saturation(image, 1 + m),
    "Contrast": lambda image, m: _contrast(image, 1 + m),
    "Sharpness": _sharpness,
    "Posterize": lambda image, m: image & np.uint8(256 - 2 ** (8 - int(m))),
    "Solarize": lambda image, m: cv2.LUT(image, np.where(_VALUES < m, _VALUES, 255 - _VALUES)),
    "Invert": lambda image, m: 255 - image,
    "AutoContrast": lambda image, m: _by_histogram(image, _auto_contrast),
    "Equalize": lambda image, m: _by_histogram(image, _equalize),
}
_JITTER = (_blend, _contrast, _saturation, _hue)
