"""Operations on (H, W, 3) uint8 RGB arrays, some on one channel (H, W) too, of which looks are made: PIL's, fast.

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
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    mean, *_ = cv2.mean(grey)
    rounded = int(mean + 0.5)
    return brightness(image, factor, rounded)


def saturation(image: np.ndarray, factor: float) -> np.ndarray:
    """Distances from the pixel's own grey times ``factor`` >= 0."""
    grey = greyscale(image)
    return cv2.addWeighted(image, factor, grey, 1.0 - factor, 0.0)


def hue(image: np.ndarray, turns: float) -> np.ndarray:
    """HSV's hue moved by a share of the circle."""
    # In float: HSV in uint8, as PIL does it, is off by up to 10 grey levels, and hardly faster.
    hsv = cv2.cvtColor(image.astype(np.float32), cv2.COLOR_RGB2HSV)
    # OpenCV wraps angles above 360 degrees, not those below 0.
    degrees = 360.0 * (turns % 1.0)
    cv2.add(hsv, (degrees, 0.0, 0.0, 0.0), hsv)
    rgb = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
    return cv2.convertScaleAbs(rgb)


def greyscale(image: np.ndarray) -> np.ndarray:
    """Luma in all three channels."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    return cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB)


def gaussian_blur(image: np.ndarray, sigma: float) -> np.ndarray:
    """Blurred by ``sigma`` > 0 px, the kernel cut at three sigma, the border mirrored."""
    # cv2.GaussianBlur on uint8 computes in fixed point, the same on all machines, in twice the time.
    reach = round(3 * sigma)
    kernel = cv2.getGaussianKernel(2 * reach + 1, sigma, cv2.CV_32F)
    return cv2.sepFilter2D(image, -1, kernel, kernel)


def flip(image: np.ndarray) -> np.ndarray:
    """Left and right exchanged."""
    return cv2.flip(image, 1)


def brightness(image: np.ndarray, factor: float, base: float = 0.0) -> np.ndarray:
    """``base + factor * (value - base)``, by a table, clipped and truncated as PIL's blend does."""
    table = base + factor * (_LEVELS - base)
    table.clip(0, 255, out=table)
    return cv2.LUT(image, table.astype(np.uint8))


def levels(channel: np.ndarray, light: float, contrast: float, gamma: float) -> np.ndarray:
    """One channel (H, W): values times ``light``, their distances from the mean times ``contrast``, then as shares of
    255 to the power of ``gamma``; by one table, rounded once."""
    mean = channel.mean()
    table = light * (mean + contrast * (_LEVELS - mean))
    table = 255 * (table.clip(0, 255) / 255) ** gamma
    return cv2.LUT(channel, table.round().astype(np.uint8))


JITTER = (brightness, contrast, saturation, hue)  # of the standard look, in the order of their numbers


def apply_operation(image: np.ndarray, name: str, magnitude: float) -> np.ndarray:
    """One of AutoAugment's operations on a square image."""
    if name in MOVES:
        moves = MOVES[name](magnitude, len(image))
        return move(image, moves)
    change = COLORS[name]
    return change(image, magnitude)


def move(image: np.ndarray, moves: Moves) -> np.ndarray:
    """Place (x, y) shows the pixel nearest to (a x + b y + c) of the first row and of the second; black from outside.

    By PIL's arithmetic.
    """
    pixels = Image.fromarray(image)
    across, down = moves
    nearest = Image.Resampling.NEAREST
    moved = pixels.transform(pixels.size, Image.Transform.AFFINE, (*across, *down), nearest)
    return np.asarray(moved)


_ACROSS, _DOWN = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)  # rows that move nothing


def _rotate(degrees: float, size: int) -> Moves:
    angle = math.radians(degrees)
    cos = math.cos(angle)
    sin = math.sin(angle)
    centre = size / 2
    across = (cos, -sin, centre * (1 - cos + sin))
    down = (sin, cos, centre * (1 - cos - sin))
    return across, down


# AutoAugment's operations that move pixels, by (magnitude, size).
MOVES: dict[str, Callable[[float, int], Moves]] = {
    "ShearX": lambda magnitude, size: ((1.0, magnitude, 0.0), _DOWN),
    "ShearY": lambda magnitude, size: (_ACROSS, (magnitude, 1.0, 0.0)),
    "TranslateX": lambda magnitude, size: ((1.0, 0.0, -float(int(magnitude))), _DOWN),
    "TranslateY": lambda magnitude, size: (_ACROSS, (0.0, 1.0, -float(int(magnitude)))),
    "Rotate": _rotate,
}

_SMOOTHING = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


def _sharpness(image: np.ndarray, magnitude: float) -> np.ndarray:
    inner = (slice(1, -1), slice(1, -1))
    smooth = image.copy()  # PIL leaves the outermost pixels alone
    filtered = cv2.filter2D(image, -1, _SMOOTHING)
    smooth[inner] = filtered[inner]
    return cv2.addWeighted(image, 1 + magnitude, smooth, -magnitude, 0.0)


def _posterize(image: np.ndarray, magnitude: float) -> np.ndarray:
    lost = 2 ** (8 - int(magnitude))
    return image & np.uint8(256 - lost)


def _solarize(image: np.ndarray, magnitude: float) -> np.ndarray:
    inverted = 255 - _VALUES
    table = np.where(_VALUES < magnitude, _VALUES, inverted)
    return cv2.LUT(image, table)


def _by_histogram(image: np.ndarray, tables_of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Every channel by its table: (256, 3) int64, made from as many counts of values."""
    histograms = [cv2.calcHist([image], [channel], None, [256], [0, 256]).ravel() for channel in range(3)]
    counts = np.stack(histograms, axis=1).astype(np.int64)
    tables = tables_of(counts)
    tables = tables.clip(0, 255).astype(np.uint8)
    return cv2.LUT(image, tables[None])


def _brightest(counts: np.ndarray) -> np.ndarray:
    """(3,) the highest value of each channel that occurs."""
    present = counts[::-1] > 0
    return 255 - present.argmax(0)


def _auto_contrast(counts: np.ndarray) -> np.ndarray:
    present = counts > 0
    low = present.argmax(0)
    high = _brightest(counts)
    scale = 255.0 / np.maximum(high - low, 1)
    stretched = _LEVELS[:, None] * scale - low * scale
    return np.where(high > low, stretched.astype(np.int64), _VALUES[:, None])


def _equalize(counts: np.ndarray) -> np.ndarray:
    of_brightest = counts[_brightest(counts), range(3)]
    step = (counts.sum(0) - of_brightest) // 255
    below = counts.cumsum(0) - counts
    equalized = (step // 2 + below) // np.maximum(step, 1)
    return np.where(step > 0, equalized, _VALUES[:, None])


# AutoAugment's operations that change colours, by magnitude.
COLORS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "Brightness": lambda image, m: brightness(image, 1 + m),
    "Color": lambda image, m: saturation(image, 1 + m),
    "Contrast": lambda image, m: contrast(image, 1 + m),
    "Sharpness": _sharpness,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "Invert": lambda image, m: 255 - image,
    "AutoContrast": lambda image, m: _by_histogram(image, _auto_contrast),
    "Equalize": lambda image, m: _by_histogram(image, _equalize),
}
