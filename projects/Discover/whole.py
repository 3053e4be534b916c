"""The object that fills much of its image: what differs from the cells at the image's frame, and lies in its middle."""

from typing import NamedTuple

import cv2
import numpy as np
from scipy.stats import zscore

from projects.Discover.parts import AREA, Part, part_of
from projects.Discover.ranking import TINY, boxes_of
from revisit.boxes.boxes import sides_of

SMOOTH = 1.0  # cells, standard deviation
ALIKE = 1e-6  # standard deviation of float32 cosines, below which all are the same


class Whole(NamedTuple):
    """The object, and what the first split took for it, which no likeness has made to stand out."""

    part: Part
    rough: Part


def find_whole(features: np.ndarray, size: tuple[int, int]) -> Whole | None:
    """The one object, if any, of (h, w, C) features of cells of length 1, in a mask of ``size``, width and height.

    With the mean feature m of the cells at the frame, and the distance d of a cell to the frame as a share of the half
    sides, the lesser of both, from 0 to 1, cells are split by

        s = z(1 - cos(f, m)) + z(d),    z(x) = (x - mean x) / standard deviation of x,

    and once more by the mean features o of the upper half and r of the others:

        s = z(cos(f, o) - cos(f, r)) + z(d).

    Either s is smoothed and split by Otsu's threshold; the object is the largest connected region of the upper half,
    where its box has more of the image than a part may have, by either split.
    """
    height, width, _ = features.shape
    depth = np.minimum.outer(_depths(height), _depths(width))
    is_frame = depth == depth.min()
    unlike = -features @ _direction(features[is_frame])
    if unlike.std() < ALIKE or depth.std() < TINY:
        return None
    smooth = _smooth(unlike, depth)
    is_object = _upper(smooth)
    like = features @ (_direction(features[is_object]) - _direction(features[~is_object]))
    if like.std() < ALIKE:
        return None
    whole = Whole(_largest(_smooth(like, depth), size), _largest(smooth, size))
    sides = sides_of(boxes_of(list(whole)))
    return whole if sides.prod(axis=1).min() >= AREA[1] * np.prod(size) else None


def _direction(cells: np.ndarray) -> np.ndarray:
    """(C,) of length 1: the mean of (n, C)."""
    mean = cells.mean(axis=0)
    return mean / max(np.linalg.norm(mean), TINY)


def _smooth(likeness: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """(h, w) float32: s of both."""
    score = zscore(likeness, axis=None) + zscore(depth, axis=None)
    return cv2.GaussianBlur(score.astype(np.float32), (0, 0), SMOOTH)


def _largest(scores: np.ndarray, size: tuple[int, int]) -> Part:
    """The largest region above the threshold, in a mask of ``size``."""
    return part_of(_upper(cv2.resize(scores, size, interpolation=cv2.INTER_LINEAR)))


def _upper(scores: np.ndarray) -> np.ndarray:
    """(h, w) bool: above Otsu's threshold."""
    grey = cv2.normalize(scores, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)
    threshold, _ = cv2.threshold(grey, 0, 255, cv2.THRESH_OTSU)
    return grey > threshold


def _depths(count: int) -> np.ndarray:
    """(count,) of rows or columns: the distance of their middles to the nearer end, as a share of half the side."""
    middles = (np.arange(count) + 0.5) / count
    return 2 * np.minimum(middles, 1 - middles)
