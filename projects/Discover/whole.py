"""The object that fills much of its image: what differs from the cells at the image's frame, and lies in its middle."""

import cv2
import numpy as np
from scipy.stats import zscore

from projects.Discover.parts import AREA, Part, part_of
from projects.Discover.ranking import TINY
from revisit.boxes.boxes import sides_of

SMOOTH = 1.0  # cells, standard deviation


def find_whole(features: np.ndarray, size: tuple[int, int]) -> list[Part]:
    """The one object, if any, of (h, w, C) features of cells of length 1, in a mask of ``size``, width and height.

    With the mean feature m of the cells at the frame, and the distance d of a cell to the frame as a share of the half
    sides, the lesser of both, from 0 to 1,

        s = z(1 - cos(f, m)) + z(d),    z(x) = (x - mean x) / standard deviation of x.

    Smoothed, s is split by Otsu's threshold; the object is the largest connected region of the upper half, where its
    box has more of the image than a part may have.
    """
    height, width, _ = features.shape
    depth = np.minimum.outer(_depths(height), _depths(width))
    is_frame = depth == depth.min()
    frame = features[is_frame].mean(axis=0)
    unlike = -features @ (frame / max(np.linalg.norm(frame), TINY))
    if unlike.std() < TINY or depth.std() < TINY:
        return []
    score = zscore(unlike, axis=None) + zscore(depth, axis=None)
    smooth = cv2.GaussianBlur(score.astype(np.float32), (0, 0), SMOOTH)
    enlarged = cv2.resize(smooth, size, interpolation=cv2.INTER_LINEAR)
    grey = cv2.normalize(enlarged, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)
    threshold, _ = cv2.threshold(grey, 0, 255, cv2.THRESH_OTSU)
    part = part_of(grey > threshold)
    sides = sides_of(np.array(part.box))
    return [part] if sides.prod() >= AREA[1] * grey.size else []


def _depths(count: int) -> np.ndarray:
    """(count,) of rows or columns: the distance of their middles to the nearer end, as a share of half the side."""
    middles = (np.arange(count) + 0.5) / count
    return 2 * np.minimum(middles, 1 - middles)
