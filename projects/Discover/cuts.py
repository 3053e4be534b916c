"""Cuts: objects that the likeness of an image's cells sets apart from all the rest, one after the other.

Written from the formulas of TokenCut (arXiv 2202.11539) and of MaskCut (arXiv 2301.11320). With unit features f_i of
the cells that are left,

    W_ij = 1 where f_i . f_j >= TAU, else UNLIKE;    D_ii = sum_j W_ij;    (D - W) y = lambda D y,

and y of the second smallest lambda, which relaxes the normalised cut into two sides: y_i above the mean of y or not.
The object is the side of the largest |y_i|, or the other one where this has two of the image's corners; of it, what is
connected with its largest |y_i|. The object's cells are removed, and the rest is cut again.
"""

from collections.abc import Iterator

import cv2
import numpy as np
from scipy.sparse.linalg import eigsh

from projects.Discover.parts import Part, part_of

TAU = 0.2  # cosine of centred features from which two cells are alike
UNLIKE = 1e-5  # affinity of the others, which keeps the graph connected
CORNERS = 2  # of the image, which an object does not have
ENDS = (0, -1)  # the first and the last row or column
CELLS = 1600  # of a grid: as many as an affinity of 20 MB has; a finer one is averaged
LEAST_CELLS = 16  # that can be cut
TOLERANCE = 1e-6  # of the eigenvalue


def find_cuts(features: np.ndarray, count: int, size: tuple[int, int]) -> list[Part]:
    """The first ``count`` cuts of (h, w, C) float32 features of cells, in a mask of ``size``, width and height."""
    objects = cut_objects(_averaged(features), count)
    shares = [mask.astype(np.float32) for mask in objects]
    enlarged = [cv2.resize(share, size, interpolation=cv2.INTER_LINEAR) for share in shares]
    masks = [share > 0.5 for share in enlarged]
    return [part_of(mask) for mask in masks if mask.any()]


def cut_objects(features: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """(h, w) bool masks of at most ``count`` objects of (h, w, C) features of length 1, of grids up to 80 x 80."""
    height, width, channels = features.shape
    cells = features.reshape(-1, channels)
    affinity = np.where(cells @ cells.T >= TAU, 1, UNLIKE)
    left = np.ones(height * width, bool)
    for _ in range(count):
        among = affinity[np.ix_(left, left)]
        if len(among) < LEAST_CELLS or among.min() == among.max():
            return
        values = np.zeros(left.shape)
        values[left] = second_eigenvector(among)
        values = values.reshape(height, width)
        mask = _object(values, left.reshape(height, width))
        left &= ~mask.ravel()
        yield mask


def second_eigenvector(affinity: np.ndarray) -> np.ndarray:
    """(n,) float64 y, up to its length and sign, of the (n, n) affinity W, symmetric and above 0.

    D^1/2 y belongs to the second largest eigenvalue of D^-1/2 W D^-1/2, whose largest has D^1/2 1 and is taken away.
    """
    roots = np.sqrt(affinity.sum(axis=1))
    first = roots / np.linalg.norm(roots)
    rest = affinity / roots / roots[:, None]
    rest -= np.outer(first, first)
    random = np.random.default_rng(0)
    start = random.normal(size=len(rest))
    _, vectors = eigsh(rest, k=1, which="LA", v0=start, tol=TOLERANCE)
    return vectors[:, 0] / roots


def _object(values: np.ndarray, left: np.ndarray) -> np.ndarray:
    """(h, w) bool: by the eigenvector's values, of the cells that are left."""
    above = left & (values > values[left].mean())
    strength = np.abs(values)  # 0 where nothing is left
    side = above if above.flat[strength.argmax()] else left & ~above
    corners = side[np.ix_(ENDS, ENDS)]
    if corners.sum() >= CORNERS:
        side = left & ~side
    _, labels = cv2.connectedComponents(side.astype(np.uint8), connectivity=4)
    of_side = np.where(side, strength, -1)
    strongest = of_side.argmax()
    return labels == labels.flat[strongest]


def _averaged(features: np.ndarray) -> np.ndarray:
    """Features of length 1 of a grid of at most CELLS cells."""
    height, width, _ = features.shape
    factor = np.ceil(np.sqrt(height * width / CELLS))
    size = (round(width / factor), round(height / factor))
    channels = features.transpose(2, 0, 1)
    averaged = [cv2.resize(channel, size, interpolation=cv2.INTER_AREA) for channel in channels]
    coarse = np.stack(averaged, axis=2)
    lengths = np.linalg.norm(coarse, axis=2, keepdims=True)
    return coarse / np.maximum(lengths, 1e-12)
