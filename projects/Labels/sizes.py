"""Odd boxes: of a size or a shape far from those of their class.

z = (x - median) / (1.4826 MAD), x the logarithm of a box's side (the root of its area) or of its width over its
height. Beyond |z| = 3.5 a value is an outlier (Iglewicz and Hoaglin, 1993).
"""

import numpy as np

from revisit.boxes.boxes import sides_of

OUTLIER = 3.5
FEWEST = 8  # boxes of a class of which a spread is known
NARROWEST = 0.05  # spread of a logarithm: boxes that are drawn by hand differ by as much
TO_DEVIATION = 1.4826  # from a normal distribution's median absolute deviation
EDGE = 2.0  # px from the edge of the image, where objects are cut off


def robust_z(values: np.ndarray) -> np.ndarray:
    """(N,) float64: how many deviations each is from the median, both robust."""
    centred = values - np.median(values)
    spread = TO_DEVIATION * np.median(np.abs(centred))
    return centred / max(spread, NARROWEST)


def oddness(boxes: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """(N,) float64: the larger |z| of size and shape of boxes (N, 4) among those of their class; 0 in classes of fewer
    than FEWEST."""
    sides = np.maximum(sides_of(boxes), 1e-3).astype(np.float64)
    width, height = np.log(sides).T
    odd = np.zeros(len(boxes))
    for number in np.unique(classes):
        own = classes == number
        if own.sum() >= FEWEST:
            size, shape = robust_z((width + height)[own] / 2), robust_z((width - height)[own])
            odd[own] = np.maximum(np.abs(size), np.abs(shape))
    return odd


def odd_suspicion(odd: np.ndarray) -> np.ndarray:
    """(N,) 0..1 of |z|: 0 up to OUTLIER, then 1 - OUTLIER / |z|."""
    return 1 - OUTLIER / np.maximum(odd, OUTLIER)


def at_edge(boxes: np.ndarray, height: np.ndarray, width: np.ndarray) -> np.ndarray:
    """(N,) bool: which boxes (N, 4) reach the edge of their image, of so many px."""
    starts = (boxes[:, :2] <= EDGE).any(axis=1)
    return starts | (boxes[:, 2] >= width - EDGE) | (boxes[:, 3] >= height - EDGE)
