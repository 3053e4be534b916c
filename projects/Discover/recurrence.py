"""What occurs in many photographs is an object rather than a piece of the background."""

from collections.abc import Mapping

import numpy as np
from sklearn.metrics.pairwise import euclidean_distances

from projects.Discover.cell_sums import CellSums
from revisit.boxes.boxes import sides_of

SIZE_WEIGHT = 6.0  # of the logarithm of a side next to features of length 1
WIDTH = 0.6  # standard deviation: how far apart two parts that are alike may be


def descriptor_length(channels: int) -> int:
    """Three means of features, and two sides."""
    return 3 * channels + 2


def descriptors(sums: CellSums, boxes: np.ndarray) -> np.ndarray:
    """(n, 3 C + 2) float64 of (n, 4) boxes in cells of (h, w, C) features, of which there are ``sums``.

    The mean features of the middle of a box (half its sides), of the rest of it and of the ring around it, and
    SIZE_WEIGHT times the logarithms of its sides as shares of the image's shorter one.
    """
    whole = sums.whole(boxes)
    middle, ring = whole.middles(), sums.with_rings(whole)
    in_middle, in_whole, in_ring = sums(middle), sums(whole), sums(ring)
    rest, outside = whole.cells - middle.cells, ring.cells - whole.cells
    means = [
        in_middle / middle.cells,
        (in_whole - in_middle) / np.maximum(rest, 1),
        (in_ring - in_whole) / np.maximum(outside, 1),
    ]
    sides = sides_of(boxes) / sums.size.min()
    sizes = SIZE_WEIGHT * np.log(sides)
    return np.concatenate([*means, sizes], axis=1)


class Recurrence:
    """(n, D) descriptors of an image's parts -> (n,) float64 from 0 to 1, how much other images have what is like each:

        the mean over images of max_j exp(-|d_i - d_j|^2 / (2 WIDTH^2))

    Args:
        references: the descriptors of some images by their names, (m, D) each.
    """

    def __init__(self, references: Mapping[str, np.ndarray]):
        with_parts = {name: parts for name, parts in references.items() if len(parts)}
        self._names = list(with_parts)
        self._starts = np.cumsum([0, *map(len, with_parts.values())])[:-1]
        self._parts = np.concatenate(list(with_parts.values())) if with_parts else np.zeros((0, 0))
        self._squares = (self._parts**2).sum(axis=1)

    def __call__(self, described: np.ndarray, own_name: str) -> np.ndarray:
        """1 for all parts where there is no other image than the one called ``own_name``."""
        others = np.array([name != own_name for name in self._names], bool)
        if not others.any() or not len(described):
            return np.ones(len(described))
        squares = euclidean_distances(described, self._parts, squared=True, Y_norm_squared=self._squares)
        nearest = np.minimum.reduceat(squares, self._starts, axis=1)[:, others]
        return np.exp(-nearest / (2 * WIDTH**2)).mean(axis=1)
