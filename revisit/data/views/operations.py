"""Operations on (H, W, 3) uint8 RGB arrays, of which looks are made: PIL's, fast.

Colours are within a grey level of the exact ones. AutoAugment's operations take a magnitude as torchvision's do, and
equal PIL's, which torchvision uses: those of a table of values and those that move pixels to the bit, the others within
two grey levels.
"""

import math
from collections.abc import Callable

import cv2
import numpy as np
from PIL import Image

_VALUES = np.arange(256, dtype=np.uint8)
_LEVELS = np.arange(256, dtype=np.float64)

Moves = tuple[tuple[float, float, float], tuple[float, float, float]]


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
    """Distances from the mean grey times ``factor`` >= 0."""
    mean_grey = int(cv2.mean(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))[0] + 0.5)
    return brightness(image, factor, mean_grey)


def saturation(image: np.ndarray, factor: float) -> np.ndarray:
    """Distances from the pixel's own grey times ``factor`` >= 0."""
    return cv2.addWeighted(image, factor, greyscale(image), 1.0 - factor, 0.0)


def hue(image: np.ndarray, turns: float) -> np.ndarray:
    """HSV's hue moved by a share of the circle."""
    # In float: HSV in uint8, as PIL does it, is off by up to 10 grey levels, and hardly faster.
    hsv = cv2.cvtColor(image.astype(np.float32), cv2.COLOR_RGB2HSV)
    # OpenCV wraps angles above 360 degrees, not those below 0.
    cv2.add(hsv, (360.0 * (turns % 1.0), 0.0, 0.0, 0.0), hsv)
    return cv2.convertScaleAbs(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB))


def greyscale(image: np.ndarray) -> np.ndarray:
    """Luma in all three channels."""
    return cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)


def gaussian_blur(image: np.ndarray, sigma: float) -> np.ndarray:
    """Blurred by ``sigma`` > 0 px, the kernel cut at three sigma, the border mirrored."""
    # cv2.GaussianBlur on uint8 computes in fixed point, the same on all machines, in twice the time.
    kernel = cv2.getGaussianKernel(2 * round(3 * sigma) + 1, sigma, cv2.CV_32F)
    return cv2.sepFilter2D(image, -1, kernel, kernel)


def flip(image: np.ndarray) -> np.ndarray:
    """Left and right exchanged."""
    return cv2.flip(image, 1)


def brightness(image: np.ndarray, factor: float, base: float = 0.0) -> np.ndarray:
    """``base + factor * (value - base)``, by a table, clipped and truncated as PIL's blend does."""
    table = base + factor * (_LEVELS - base)
    return cv2.LUT(image, table.clip(0, 255, out=table).astype(np.uint8))


JITTER = (brightness, contrast, saturation, hue)  # of the standard look, in the order of their numbers


def apply_operation(image: np.ndarray, name: str, magnitude: float) -> np.ndarray:
    """One of AutoAugment's operations on a square image."""
    if name in MOVES:
        return move(image, MOVES[name](magnitude, len(image)))
    return COLORS[name](image, magnitude)


def move(image: np.ndarray, moves: Moves) -> np.ndarray:
    """Place (x, y) shows the pixel nearest to (a x + b y + c) of the first row and of the second; black from outside.

    By PIL's arithmetic.
    """
    pixels = Image.fromarray(image)
    moved = pixels.transform(pixels.size, Image.Transform.AFFINE, (*moves[0], *moves[1]), Image.Resampling.NEAREST)
    return np.asarray(moved)


def _rotation(degrees: float, size: int) -> Moves:
    cos = math.cos(math.radians(degrees))
    sin = math.sin(math.radians(degrees))
    centre = size / 2
    return (cos, -sin, centre * (1 - cos + sin)), (sin, cos, centre * (1 - cos - sin))


# AutoAugment's operations that move pixels, by (magnitude, size).
MOVES: dict[str, Callable[[float, int], Moves]] = {
    "ShearX": lambda m, size: ((1.0, m, 0.0), (0.0, 1.0, 0.0)),
    "ShearY": lambda m, size: ((1.0, 0.0, 0.0), (m, 1.0, 0.0)),
    "TranslateX": lambda m, size: ((1.0, 0.0, -float(int(m))), (0.0, 1.0, 0.0)),
    "TranslateY": lambda m, size: ((1.0, 0.0, 0.0), (0.0, 1.0, -float(int(m)))),
    "Rotate": _rotation,
}


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
    low = present.argmax(0)
    high = 255 - present[::-1].argmax(0)
    scale = 255.0 / np.maximum(high - low, 1)
    stretched = (_LEVELS[:, None] * scale - low * scale).astype(np.int64)
    return np.where(high > low, stretched, _VALUES[:, None])


def _equalize(counts: np.ndarray) -> np.ndarray:
    brightest = 255 - (counts[::-1] > 0).argmax(0)
    step = (counts.sum(0) - counts[brightest, range(3)]) // 255
    equalized = (step // 2 + counts.cumsum(0) - counts) // np.maximum(step, 1)
    return np.where(step > 0, equalized, _VALUES[:, None])


# AutoAugment's operations that change colours, by magnitude.
COLORS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "Brightness": lambda image, m: brightness(image, 1 + m),
    "Color": lambda image, m: saturation(image, 1 + m),
    "Contrast": lambda image, m: contrast(image, 1 + m),
    "Sharpness": _sharpness,
    "Posterize": lambda image, m: image & np.uint8(256 - 2 ** (8 - int(m))),
    "Solarize": lambda image, m: cv2.LUT(image, np.where(_VALUES < m, _VALUES, 255 - _VALUES)),
    "Invert": lambda image, m: 255 - image,
    "AutoContrast": lambda image, m: _by_histogram(image, _auto_contrast),
    "Equalize": lambda image, m: _by_histogram(image, _equalize),
}
