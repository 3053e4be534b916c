"""Features of an image's cells, summed over boxes of whole cells."""

from typing import NamedTuple

import numpy as np

RING = 0.25  # of a box's sides, the width of what is around it


class CellBoxes(NamedTuple):
    """Boxes of whole cells."""

    low: np.ndarray  # (n, 2) int, x and y of the first cell
    high: np.ndarray  # (n, 2) int, x and y after the last cell

    @property
    def cells(self) -> np.ndarray:
        """(n, 1) int: how many cells each one has."""
        sides = self.high - self.low
        return sides.prod(axis=1, keepdims=True)

    def middles(self) -> "CellBoxes":
        """Boxes of half the sides at the same places."""
        quarter = (self.high - self.low) // 4
        return CellBoxes(self.low + quarter, self.high - quarter)


class CellSums:
    """CellBoxes -> (n, C) float64 sums of the (h, w, C) features of their cells, by an integral image."""

    def __init__(self, features: np.ndarray):
        height, width, _ = features.shape
        self.size = np.array([width, height])  # cells
        down = features.cumsum(axis=0, dtype=np.float64)
        sums = down.cumsum(axis=1)
        before = (1, 0)  # a row and a column of zeros
        self._sums = np.pad(sums, (before, before, (0, 0)))

    def __call__(self, boxes: CellBoxes) -> np.ndarray:
        x0, y0 = boxes.low.T
        x1, y1 = boxes.high.T
        total = self._sums[y1, x1] - self._sums[y0, x1]
        total -= self._sums[y1, x0]
        total += self._sums[y0, x0]
        return total

    def whole(self, boxes: np.ndarray) -> CellBoxes:
        """(n, 4) boxes in cells as boxes of whole cells inside the image, of at least one cell."""
        rounded = np.round(boxes).astype(int)
        low, high = np.split(rounded, 2, axis=1)
        low = np.clip(low, 0, self.size - 1)
        high = np.maximum(high, low + 1)
        return CellBoxes(low, np.clip(high, 1, self.size))

    def with_rings(self, boxes: CellBoxes) -> CellBoxes:
        """Boxes that are larger by RING of a side, at least a cell, on each side that the image has."""
        width = np.round(RING * (boxes.high - boxes.low))
        width = np.maximum(width.astype(int), 1)
        low = np.maximum(boxes.low - width, 0)
        high = np.minimum(boxes.high + width, self.size)
        return CellBoxes(low, high)
