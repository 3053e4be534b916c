"""What occurs in many photographs is an object rather than a piece of the background."""

from collections.abc import Mapping

import numpy as np

from projects.Discover.ranking import box_sums, rounded_boxes, rounded_rings

SIZE_WEIGHT = 6.0  # of the logarithm of a side next to features of length 1
WIDTH = 0.6  # standard deviation: how far apart two parts that are alike may be


def descriptors(features: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(n, 3 C + 2) float64 of (n, 4) boxes in cells of (h, w, C) features.

    The mean features of the middle of a box (half its sides), of the rest of it and of the ring around it, and
    SIZE_WEIGHT times the logarithms of its sides as shares of the image's shorter one.
    """
    sums, low, high = rounded_boxes(features, boxes)
    ring_low, ring_high = rounded_rings(features, low, high)
    quarter = (high - low) // 4
    inner_low, inner_high = low + quarter, high - quarter
    middle = box_sums(sums, inner_low, inner_high)
    whole = box_sums(sums, low, high)
    ring = box_sums(sums, ring_low, ring_high)
    cells = [
        (upper - lower).prod(axis=1)[:, None]
        for lower, upper in ((inner_low, inner_high), (low, high), (ring_low, ring_high))
    ]
    means = [
        middle / cells[0],
        (whole - middle) / np.maximum(cells[1] - cells[0], 1),
        (ring - whole) / np.maximum(cells[2] - cells[1], 1),
    ]
    sides = (boxes[:, 2:] - boxes[:, :2]) / min(features.shape[:2])
    return np.concatenate([*means, SIZE_WEIGHT * np.log(sides)], axis=1)


class Recurrence:
    """(n, D) descriptors of an image's parts -> (n,) float64 from 0 to 1, how much other images have what is like each:

        the mean over images of max_j exp(-|d_i - d_j|^2 / (2 WIDTH^2))

    Args:
        references: the descriptors of some images by their names, (m, D) each.
    """

    def __init__(self, references: Mapping[str, np.ndarray]):
        self._references = references

    def __call__(self, described: np.ndarray, own_name: str) -> np.ndarray:
        """1 for all parts where there is no other image than the one called ``own_name``."""
        others = [parts for name, parts in self._references.items() if name != own_name and len(parts)]
        if not others:
            return np.ones(len(described))
        total = np.zeros(len(described))
        for parts in others:
            squares = (described**2).sum(axis=1)[:, None] + (parts**2).sum(axis=1) - 2 * described @ parts.T
            nearest = np.maximum(squares.min(axis=1), 0)
            total += np.exp(-nearest / (2 * WIDTH**2))
        return total / len(others)
