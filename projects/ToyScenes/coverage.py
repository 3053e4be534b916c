"""Antialiased coverage of the pixels by a polygon."""

import cv2
import numpy as np

SUBSAMPLES = 4  # per pixel and axis
_FRACTION_BITS = 4  # of the fixed-point vertices handed to OpenCV

Window = tuple[slice, slice]  # rows, columns


def polygon_coverage(polygon: np.ndarray, size: int, margin: float = 0.0) -> tuple[Window, np.ndarray]:
    """The share of each pixel that lies inside a polygon, around that polygon.

    Args:
        polygon: float (V, 2), x and y in pixels of a ``size`` x ``size`` image; pixel (r, c) is the
            square [c, c + 1) x [r, r + 1).
        size: pixels on a side of the image.
        margin: pixels that the window is wider than the polygon on each side.

    Returns:
        The window (rows, columns), clipped to the image and possibly empty, and the coverage there,
        float32 in [0, 1], of the window's shape.
    """
    left, top = np.clip(np.floor(polygon.min(axis=0) - margin), 0, size).astype(int)
    right, bottom = np.clip(np.ceil(polygon.max(axis=0) + margin), 0, size).astype(int)
    window = slice(top, bottom), slice(left, right)
    height, width = bottom - top, right - left
    if height == 0 or width == 0:
        return window, np.zeros((height, width), np.float32)
    fine = np.zeros((height * SUBSAMPLES, width * SUBSAMPLES), np.uint8)
    # OpenCV puts integer coordinates at the centres of pixels, not at their corners.
    vertices = (polygon - (left, top)) * SUBSAMPLES - 0.5
    fixed = np.rint(vertices * (1 << _FRACTION_BITS)).astype(np.int32)
    cv2.fillPoly(fine, [fixed], 255, lineType=cv2.LINE_8, shift=_FRACTION_BITS)
    coverage = cv2.resize(fine, (width, height), interpolation=cv2.INTER_AREA)
    return window, coverage.astype(np.float32) / 255.0
