"""Parts of an image whose cells look alike: connected regions of clusters, and these divided where they are narrow."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import cv2
import numpy as np
from scipy import ndimage
from sklearn.cluster import KMeans, kmeans_plusplus

CLUSTERS = (2, 3, 4, 5, 6, 8, 12)
AGAINST = 3  # clusters, of which each is also taken against the others together
FINER = 3  # pixels of a mask to a side of the finest cells
AREA = (0.004, 0.3)  # least and most of the image
PEAKS = 11  # px of a mask between two middles of objects that touch
THICK = 3.0  # px of a mask, at least, from a middle to the border
SMOOTH = 1.5  # px of a mask, standard deviation: two peaks of one middle become one
LEVELS = 255  # of the distance to the border, for the watershed
NEIGHBOURS = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))


class Part(NamedTuple):
    """A region of an image, in pixels of a mask."""

    box: tuple[int, int, int, int]  # x0, y0, x1, y1
    mask: np.ndarray  # (y1 - y0, x1 - x0) bool

    @property
    def area(self) -> int:
        return int(np.count_nonzero(self.mask))  # a sum would convert it


def part_of(mask: np.ndarray) -> Part:
    """The largest connected region of an (H, W) bool mask, True somewhere."""
    _, regions = cv2.connectedComponents(mask.astype(np.uint8), connectivity=4)
    areas = np.bincount(regions.ravel())
    (largest,) = _parts_of(regions, [1 + areas[1:].argmax()])
    return largest


def _parts_of(regions: np.ndarray, numbers: Iterable[int]) -> list[Part]:
    """The regions of these numbers, of (H, W) int32 numbers from 1 on."""
    places = ndimage.find_objects(regions)
    parts = []
    for number in numbers:
        rows, columns = places[number - 1]
        box = (columns.start, rows.start, columns.stop, rows.stop)
        parts.append(Part(box, regions[rows, columns] == number))
    return parts


def find_parts(maps: Sequence[np.ndarray], clusters: Sequence[int] = CLUSTERS) -> list[Part]:
    """Candidates for objects, many of them overlapping, of (h, w, C) float32 features of an image's cells, the finest
    first: regions in pixels of a mask, FINER to a side of the finest cells.

    The cells of each map are clustered by k-means (k = 2 .. 12) and the distances to the centres enlarged, so that the
    border of a cluster is finer than a cell. Regions are connected parts of a cluster, or of all but one of AGAINST;
    where one is wide at several places, it is also divided between them (watershed of the distance to its border).
    """
    parts: list[Part] = []
    height, width = maps[0].shape[:2]
    size = (width * FINER, height * FINER)
    for labels in chain.from_iterable(_clusterings(features, clusters, size) for features in maps):
        parts += _regions(labels)
        parts += _regions(_divided(labels))
    return parts


def _clusterings(features: np.ndarray, clusters: Sequence[int], size: tuple[int, int]) -> Iterator[np.ndarray]:
    """(H, W) uint8 of ``size``, width and height: the number of a pixel's cluster, from 1 on, for each k; and 2 in and
    1 outside of each one of AGAINST."""
    height, width, channels = features.shape
    cells = features.reshape(-1, channels)
    exact = cells.astype(np.float64)  # k-means++ would convert float32 for every centre
    different = {cell.tobytes() for cell in cells}
    possible = [count for count in clusters if count <= len(different)]
    for count in possible:
        drawn, _ = kmeans_plusplus(exact, count, random_state=0)
        centres = KMeans(count, init=drawn.astype(np.float32), n_init=1, max_iter=50).fit(cells).cluster_centers_
        squares = (centres**2).sum(axis=1) - 2 * cells @ centres.T  # of distances, less the cell's own
        maps = squares.reshape(height, width, count)
        enlarged = cv2.resize(maps, size, interpolation=cv2.INTER_CUBIC)
        nearest = enlarged.argmin(axis=2).astype(np.uint8)
        yield 1 + nearest
        against = range(count) if count == AGAINST else ()
        for number in against:
            yield 1 + (nearest == number).astype(np.uint8)


def _regions(labels: np.ndarray) -> list[Part]:
    """Connected ones of a fitting size, of pixels of one number in (H, W); 0 is in none."""
    height, width = labels.shape
    is_known = labels > 0
    links = np.zeros((2 * height - 1, 2 * width - 1), np.uint8)  # between two pixels, whether both are of one region
    links[::2, ::2] = is_known
    links[::2, 1::2] = is_known[:, 1:] & (labels[:, 1:] == labels[:, :-1])
    links[1::2, ::2] = is_known[1:] & (labels[1:] == labels[:-1])
    _, linked = cv2.connectedComponents(links, connectivity=8)  # links that touch at a corner share a pixel
    regions = linked[::2, ::2]
    areas = np.bincount(regions.ravel())
    least, most = (share * labels.size for share in AREA)
    fitting = 1 + np.flatnonzero((areas[1:] >= least) & (areas[1:] <= most))
    return _parts_of(regions, fitting)


def _divided(labels: np.ndarray) -> np.ndarray:
    """(H, W) int32: for (H, W) uint8 numbers from 1 on, another number in every wide place of what has one; 0 in what
    has no wide place."""
    inside = cv2.dilate(labels, NEIGHBOURS) == cv2.erode(labels, NEIGHBOURS)
    depth = 1 + cv2.distanceTransform(inside.astype(np.uint8), cv2.DIST_L2, 5)
    smooth = cv2.GaussianBlur(depth, (0, 0), SMOOTH)
    highest = cv2.dilate(smooth, np.ones((PEAKS, PEAKS), np.uint8))
    middles = (smooth == highest) & (depth > THICK)
    count, markers = cv2.connectedComponents(middles.astype(np.uint8))
    if count == 1 or inside.all():  # no middle, or no border
        return np.zeros_like(markers)
    basin = (LEVELS - LEVELS * depth / depth.max()).astype(np.uint16)
    basin += 4 * LEVELS * labels.astype(np.uint16)  # a step to another number is higher than all of one
    places = ndimage.watershed_ift(basin, markers)
    label_of = np.zeros(count, np.uint8)
    label_of[markers[middles]] = labels[middles]
    return np.where(label_of[places] == labels, places, 0)
