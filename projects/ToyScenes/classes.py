"""The ten ToyScenes classes, five shapes times two texture families, and the pixels that a shape covers.

Both halves of a name are needed to tell a class: every shape comes in both textures, every texture on
all shapes. Colour, size, place, light and background never depend on the class.
"""

import cv2
import numpy as np

SHAPES = ("disk", "square", "triangle", "star", "cross")
TEXTURES = ("striped", "dotted")

# Textures alternate, so that the head and the tail of a long-tailed draw hold both.
CLASS_NAMES = tuple(f"{texture}_{shape}" for shape in SHAPES for texture in TEXTURES)

SUBSAMPLES = 4  # per pixel and axis, for the coverage of pixels
_FRACTION_BITS = 4  # of the fixed-point vertices handed to OpenCV


def shape_of(class_id: int) -> str:
    """The shape, an entry of ``SHAPES``, of class ``class_id`` (an index into ``CLASS_NAMES``)."""
    return SHAPES[class_id // len(TEXTURES)]


def texture_of(class_id: int) -> str:
    """The texture family, an entry of ``TEXTURES``, of class ``class_id``."""
    return TEXTURES[class_id % len(TEXTURES)]


def class_weights(long_tailed: bool) -> np.ndarray:
    """Probability of each class, float64 (10,): uniform, or in proportion to (k + 1)**-1.5 for class k = 0..9."""
    rank = np.arange(1, len(CLASS_NAMES) + 1, dtype=np.float64)
    weights = rank**-1.5 if long_tailed else np.ones_like(rank)
    return weights / weights.sum()


def class_quotas(num_images: int, long_tailed: bool) -> np.ndarray:
    """Images per class, int64 (10,), summing to ``num_images``: the weights' shares, largest remainder."""
    shares = class_weights(long_tailed) * num_images
    quotas = np.floor(shares).astype(np.int64)
    missing = num_images - quotas.sum()
    largest_remainder_first = np.argsort(quotas - shares, kind="stable")
    quotas[largest_remainder_first[:missing]] += 1
    return quotas


def unit_polygon(class_id: int) -> np.ndarray:
    """Outline of a class's shape, float64 (V, 2), centred at (0, 0), y down, enclosing an area of exactly 1.

    Equal areas keep the number of object pixels from giving the class away.
    """
    outline = _OUTLINES[shape_of(class_id)]
    x, y = outline.T
    next_x = np.roll(x, -1)
    next_y = np.roll(y, -1)
    area = abs(np.sum(x * next_y - y * next_x)) / 2
    return outline / np.sqrt(area)


def polygon_coverage(polygon: np.ndarray, size: int, margin: float = 0.0) -> tuple[tuple[slice, slice], np.ndarray]:
    """A window (rows, columns) ``margin`` px around a polygon, clipped to the image, and the share of each pixel there
    that lies inside the polygon, float32.

    The polygon is float (V, 2), x and y in pixels of a ``size`` x ``size`` image; pixel (r, c) is the square
    [c, c + 1) x [r, r + 1).
    """
    lowest = np.floor(polygon.min(axis=0) - margin)
    highest = np.ceil(polygon.max(axis=0) + margin)
    left, top = np.clip(lowest, 0, size).astype(int)
    right, bottom = np.clip(highest, 0, size).astype(int)
    window = slice(top, bottom), slice(left, right)
    height = bottom - top
    width = right - left
    if height == 0 or width == 0:
        return window, np.zeros((height, width), np.float32)
    fine = np.zeros((height * SUBSAMPLES, width * SUBSAMPLES), np.uint8)
    # OpenCV puts integer coordinates at the centres of pixels, not at their corners.
    vertices = (polygon - (left, top)) * SUBSAMPLES - 0.5
    fixed = np.rint(vertices * (1 << _FRACTION_BITS)).astype(np.int32)
    cv2.fillPoly(fine, [fixed], 255, lineType=cv2.LINE_8, shift=_FRACTION_BITS)
    coverage = cv2.resize(fine, (width, height), interpolation=cv2.INTER_AREA)
    return window, coverage.astype(np.float32) / 255.0


def _ring_of_points(count: int, radii: tuple[float, ...]) -> np.ndarray:
    turn = 2 * np.pi * np.arange(count) / count - np.pi / 2
    radius = np.resize(radii, count)
    x = radius * np.cos(turn)
    y = radius * np.sin(turn)
    return np.stack([x, y], axis=1)


_ARM = 0.36  # half the width of the cross's arms, in units of their length
_END_OF_ARM = np.array([(-_ARM, -1), (_ARM, -1), (_ARM, -_ARM)])
_QUARTER_TURN = np.array([(0, 1), (-1, 0)])
_OUTLINES = {
    "disk": _ring_of_points(64, (1.0,)),
    "square": np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)], dtype=np.float64),
    "triangle": _ring_of_points(3, (1.0,)),
    "star": _ring_of_points(10, (1.0, 0.47)),
    "cross": np.concatenate([_END_OF_ARM @ np.linalg.matrix_power(_QUARTER_TURN, n) for n in range(4)]),
}
