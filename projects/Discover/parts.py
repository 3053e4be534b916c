"""Parts of an image whose cells look alike: connected regions of clusters, and these divided where they are narrow."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import cv2
import numpy as np
from scipy import ndimage
from sklearn.cluster import KMeans

CLUSTERS = (2, 3, 4, 5, 6)
FINER = 4  # pixels of a mask to a side of the finest cells
AREA = (0.004, 0.3)  # least and most of the image
PEAKS = 15  # px of a mask between two middles of objects that touch
THICK = 3.0  # px of a mask, at least, from a middle to the border
SMOOTH = 2.0  # px of a mask, standard deviation: two peaks of one middle become one


class Part(NamedTuple):
    """A region of an image, in pixels of a mask."""

    box: tuple[int, int, int, int]  # x0, y0, x1, y1
    mask: np.ndarray  # (y1 - y0, x1 - x0) bool

    @property
    def area(self) -> int:
        return int(self.mask.sum())


def part_of(mask: np.ndarray) -> Part:
    """The largest connected region of an (H, W) bool mask, True somewhere."""
    labels, stats = _connected(mask)
    return _part(labels, 1 + stats[1:, cv2.CC_STAT_AREA].argmax(), stats)


def _connected(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(H, W) int32, the number of the connected region that a pixel is in, from 1, 0 outside; and OpenCV's statistics
    of each, in the first row those of what is outside."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=4)
    return labels, stats


def _part(labels: np.ndarray, number: int, stats: np.ndarray) -> Part:
    x0, y0, width, height, _ = stats[number].tolist()
    x1, y1 = x0 + width, y0 + height
    return Part((x0, y0, x1, y1), labels[y0:y1, x0:x1] == number)


def find_parts(maps: Sequence[np.ndarray], clusters: Sequence[int] = CLUSTERS) -> list[Part]:
    """Candidates for objects, many of them overlapping, of (h, w, C) float32 features of an image's cells, the finest
    first: regions in pixels of a mask, FINER to a side of the finest cells.

    The cells of each map are clustered by k-means (k = 2 .. 6) and the distances to the centres enlarged, so that the
    border of a cluster is finer than a cell. Regions are connected parts of a cluster or of all others together; where
    one is wide at several places, it is divided between them (watershed of the distance to its border).
    """
    parts: list[Part] = []
    height, width = maps[0].shape[:2]
    size = (width * FINER, height * FINER)
    for cluster in chain.from_iterable(_clusters(features, clusters, size) for features in maps):
        for mask in (cluster, ~cluster):
            parts += _regions(mask)
            parts += _divided(mask)
    return parts


def _clusters(features: np.ndarray, clusters: Sequence[int], size: tuple[int, int]) -> Iterator[np.ndarray]:
    """Bool masks of ``size``, width and height, of each cluster of each k."""
    height, width, channels = features.shape
    cells = features.reshape(-1, channels)
    if (cells == cells[0]).all():
        return
    possible = [count for count in clusters if count <= len(cells)]
    for count in possible:
        kmeans = KMeans(count, n_init=1, max_iter=50, random_state=0)
        distances = kmeans.fit_transform(cells)
        squares = distances.astype(np.float32) ** 2
        maps = squares.reshape(height, width, count)
        enlarged = cv2.resize(maps, size, interpolation=cv2.INTER_CUBIC)
        nearest = enlarged.argmin(axis=2)
        different = count if count > 2 else 1  # of two clusters one is all that the other is not
        for number in range(different):
            yield nearest == number


def _regions(mask: np.ndarray) -> list[Part]:
    """Connected ones of a fitting size."""
    labels, stats = _connected(mask)
    least, most = (share * mask.size for share in AREA)
    areas = stats[1:, cv2.CC_STAT_AREA]
    fitting = 1 + np.flatnonzero((areas >= least) & (areas <= most))
    return [_part(labels, number, stats) for number in fitting]


def _divided(mask: np.ndarray) -> list[Part]:
    """A part for every wide place of a mask, of a fitting size; none where there are fewer than two places."""
    depth = cv2.distanceTransform(mask.astype(np.uint8), cv2.DIST_L2, 5)
    smooth = cv2.GaussianBlur(depth, (0, 0), SMOOTH)
    highest = cv2.dilate(smooth, np.ones((PEAKS, PEAKS), np.uint8))
    middles = (smooth == highest) & (depth > THICK)
    count, markers = cv2.connectedComponents(middles.astype(np.uint8))
    if count < 3:  # the first is what is no middle
        return []
    markers[~mask] = -1  # for scipy, what is flooded last
    basin = (255 - 255 * depth / depth.max()).astype(np.uint8)
    labels = ndimage.watershed_ift(basin, markers.astype(np.int32))
    labels[~mask | (labels < 0)] = 0
    least, most = (share * mask.size for share in AREA)
    areas = np.bincount(labels.ravel())
    places = ndimage.find_objects(labels)
    parts = []
    for number in 1 + np.flatnonzero(areas[1:] >= least):
        rows, columns = places[number - 1]
        (x0, y0, x1, y1), region = part_of(labels[rows, columns] == number)  # it may be several: then the largest
        box = (x0 + columns.start, y0 + rows.start, x1 + columns.start, y1 + rows.start)
        parts.append(Part(box, region))
    return [part for part in parts if least <= part.area <= most]
