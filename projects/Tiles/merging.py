"""From what a detector found in windows of an image to the objects of the whole image.

An object that ends at an *inner* border of its window, one that is not the image's, is a fragment: it may go on beyond.

- Where a window that sees farther has the end of the same object, the object ends there.
- A fragment gives way to an object that another window sees whole, where both agree inside the fragment's window.
- Fragments of several windows that agree where both windows see are one object; windows that share nothing have their
  common edge to compare.
- A pass over the reduced whole image, whose window is the image, counts for what is larger than half a window. It gives
  way to what a window sees whole, and fragments give way to it, unless it is much less sure.
- Then non-maximum suppression within each class, as a detector does in each image.

Only what meets in a window is compared.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as run_lengths
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from projects.Tiles.windows import common, meeting
from revisit.boxes.boxes import IOU, iou, iou_of_pairs, sides_of
from revisit.data.sources.coco_truth import MOST_PIXELS, check_countable
from revisit.errors import translated

Runs = dict[str, Any]  # a mask's run lengths in COCO's format, compressed
OUTWARD = np.array([-1, -1, 1, 1])  # where left, top, right and bottom lie
NEAR = 1.5  # px from a border, within which an object ends there; farther, if
NEAR_SHARE = 0.08  # of the object's side, and
NEAR_SHARED = 0.5  # of what neighbours share are not exceeded: so far the next window tells whether it goes on
EDGE = 1.0  # px by which windows and what they cut are taken to go on, so that windows that only touch have an edge
LARGE = 0.5  # of a window's side, from which on an object of the reduced whole counts
SURE = 0.5  # of a fragment's score, from which on it gives way to the reduced whole


class Found(NamedTuple):
    """N detections in windows of one image."""

    boxes: np.ndarray  # (N, 4) float64 xyxy px of the whole image
    scores: np.ndarray  # (N,) float64
    classes: np.ndarray  # (N,) int
    origins: np.ndarray  # (N,) int, the row of the window
    masks: list[Runs] | None = None  # N of the whole image

    def take(self, chosen: np.ndarray) -> Found:
        """Some of them, in the order of indices."""
        masks = None if self.masks is None else [self.masks[n] for n in chosen]
        arrays = (self.boxes[chosen], self.scores[chosen], self.classes[chosen], self.origins[chosen])
        return Found(*arrays, masks)


def merged(found: Found, windows: np.ndarray, height: int, width: int, nms: float = IOU) -> Found:
    """The objects of an image, by falling score, whatever the order of ``found``.

    An object is a detection as it was, or joined fragments: the box around all, their masks united, and the score, the
    class and the origin of the largest.

    Args:
        windows: (n, 4) int left, top, right, bottom px, inside the image.
        height, width: of the image, px.
        nms: IoU in [0, 1] above which the worse of two objects of a class goes.
    """
    image = np.array([0, 0, width, height])
    whole_image = (windows == image).all(axis=1)
    reduced = whole_image & ~whole_image.all()
    tiles = windows[~reduced]
    found = _in_order(_large_enough(found, reduced, tiles))
    cut = _cut_sides(found.boxes, windows[found.origins], image, _shared(tiles))
    is_reduced = reduced[found.origins]
    cut &= ~_ended(found, windows, cut, _links(found, windows, cut, is_reduced))
    is_whole = cut.max(axis=1) == 0
    links = _links(found, windows, cut, is_reduced)
    linked = coo_array((np.ones(links.shape[1], bool), tuple(links)), shape=(len(cut), len(cut)))
    _, groups = connected_components(linked, directed=False)
    objects, largest = _joined(found, is_whole, groups)
    is_second = (is_reduced | ~is_whole)[largest]
    return _in_order(objects.take(_suppressed(objects, is_second, tiles, nms)))


def _large_enough(found: Found, reduced: np.ndarray, tiles: np.ndarray) -> Found:
    least = LARGE * sides_of(tiles).max(initial=0)
    is_large = sides_of(found.boxes).max(axis=1) >= least
    return found.take(np.flatnonzero(is_large | ~reduced[found.origins]))


def _in_order(found: Found) -> Found:
    """By falling score; equal ones in an order of their own, whatever the order they came in."""
    return found.take(np.lexsort((found.origins, *found.boxes.T, found.classes, -found.scores)))


def _shared(tiles: np.ndarray) -> int:
    """Px that all neighbours in a grid share at least, or 0."""
    axes = [(np.unique(tiles[:, axis]), np.unique(tiles[:, 2 + axis])) for axis in (0, 1)]
    return max(0, min((ends[:-1] - starts[1:]).min(initial=MOST_PIXELS) for starts, ends in axes))


def _cut_sides(boxes: np.ndarray, seen: np.ndarray, image: np.ndarray, shared: int) -> np.ndarray:
    """(N, 4) bool: which sides of boxes end at an inner border of the windows in which they were seen."""
    farther = np.minimum(NEAR_SHARE * np.tile(sides_of(boxes), 2), NEAR_SHARED * shared)
    is_near = (seen - boxes) * OUTWARD <= np.maximum(NEAR, farther)
    is_inner = (image - seen) * OUTWARD > 0
    return is_near & is_inner


def _links(found: Found, windows: np.ndarray, cut: np.ndarray, is_reduced: np.ndarray) -> np.ndarray:
    """(2, P) indices of fragments, and of what is the same object in another window: both agree in what the fragment's
    window sees of the other, or, where that is a fragment too, in what both windows see."""
    wide = windows + EDGE * OUTWARD
    seen = wide[found.origins]
    is_at_border = cut & ((windows[found.origins] - found.boxes) * OUTWARD <= 0)
    ends = [np.where(goes_on, seen, found.boxes) for goes_on in (cut, is_at_border)]  # what is only near may end there
    sides = ends[0].T.copy()
    is_cut = cut.max(axis=1) > 0
    fragments = np.flatnonzero(is_cut)
    links = [np.zeros((2, 0), int)]
    for origin in np.unique(found.origins[fragments]):
        own = fragments[found.origins[fragments] == origin]
        others = meeting(wide[origin], sides)
        others = others[found.origins[others] != origin]
        views = np.where(is_cut[others, None], common(seen[others], wide[origin]), wide[origin])
        alike = np.any([_alike(boxes[own, None], boxes[others], views) for boxes in ends], axis=0)
        same = found.classes[own, None] == found.classes[others]
        sure = ~is_reduced[others] | (found.scores[others] >= SURE * found.scores[own, None])
        rows, columns = np.nonzero(alike & same & sure)
        links.append(np.stack([own[rows], others[columns]]))
    return np.concatenate(links, axis=1)


def _ended(found: Found, windows: np.ndarray, cut: np.ndarray, links: np.ndarray) -> np.ndarray:
    """(N, 4) bool: sides that end where they seem cut: a window that sees farther has the end inside the fragment's."""
    meet = sides_of(common(*found.boxes[links])).min(axis=1) > 0
    fragments, others = links[:, meet]
    borders = windows[found.origins[fragments]]
    sees_farther = (windows[found.origins[others]] - borders) * OUTWARD > 0
    is_inside = (found.boxes[others] - borders) * OUTWARD <= 0
    ended = np.zeros(cut.shape, bool)
    np.logical_or.at(ended, fragments, ~cut[others] & sees_farther & is_inside)
    return ended


def _alike(boxes: np.ndarray, others: np.ndarray, views: np.ndarray) -> np.ndarray:
    """(n, m) bool: whether (n, 1, 4) boxes and (m, 4) others agree in what (m, 4) views show of both."""
    one, other = common(boxes, views), common(others, views)
    overlap = iou_of_pairs(one, other)
    near = np.minimum(NEAR_SHARE * sides_of(others).max(axis=1), NEAR_SHARED * sides_of(views).min(axis=1))
    is_close = np.abs(one - other).max(axis=2) < near
    return (overlap >= IOU) | (is_close & (overlap > 0))


def _joined(found: Found, is_whole: np.ndarray, groups: np.ndarray) -> tuple[Found, np.ndarray]:
    """The objects: what is whole, and the fragments of each group that has nothing whole, as one; also the index of
    each one's largest part."""
    number = np.where(is_whole, len(groups) + np.arange(len(groups)), groups)
    gives_way = ~is_whole & (np.bincount(groups, is_whole) > 0)[groups]
    areas = sides_of(found.boxes).prod(axis=1)
    parts = np.lexsort((-areas, number))
    parts = parts[~gives_way[parts]]
    starts = np.flatnonzero(np.diff(number[parts], prepend=-1))
    largest = parts[starts]
    low = np.minimum.reduceat(found.boxes[parts], starts)
    high = np.maximum.reduceat(found.boxes[parts], starts)
    objects = found.take(largest)._replace(boxes=np.where(OUTWARD < 0, low, high))
    if found.masks is None:
        return objects, largest
    united = [run_lengths.merge(found.take(each).masks) for each in np.split(parts, starts[1:])]
    return objects._replace(masks=united), largest


def _suppressed(objects: Found, is_second: np.ndarray, tiles: np.ndarray, nms: float) -> np.ndarray:
    """Indices of the objects that are left when of each two of a class with an IoU above ``nms`` the worse one goes:
    one that ``is_second``, else the one with the lower score."""
    ranks = np.argsort(np.lexsort((-objects.scores, is_second)))
    sides = objects.boxes.T.copy()
    pairs = [np.zeros((2, 0), int)]
    for tile in tiles:
        near = meeting(tile, sides)
        overlap = iou(objects.boxes[near], objects.boxes[near])
        same = objects.classes[near, None] == objects.classes[near]
        is_better = ranks[near, None] < ranks[near]
        pairs.append(near[np.stack(np.nonzero((overlap > nms) & same & is_better))])
    better, worse = np.concatenate(pairs, axis=1)
    stays = np.ones(len(ranks), bool)
    for pair in np.argsort(ranks[better], kind="stable"):
        stays[worse[pair]] &= not stays[better[pair]]
    return np.flatnonzero(stays)


def place_mask(mask: np.ndarray, left: int, top: int, height: int, width: int) -> Runs:
    """A mask that was found in a window, as run lengths of the whole image, of which nothing is made but these.

    Args:
        mask: (h, w) bool or uint8, the same as 0 and 1.
        left, top: of the window, px; the mask lies inside the image.
        height, width: of the image, px.

    Raises:
        UserError: an image of more px than run lengths can count.
    """
    with translated("what is found", content=True):
        check_countable(height, width)
    in_columns = np.pad(mask.T != 0, ((0, 0), (1, 1)))
    columns, rows = np.nonzero(in_columns[:, 1:] != in_columns[:, :-1])
    ends = (left + columns) * height + top + rows
    numbers, times = np.unique(
        ends, return_counts=True
    )  # a run to the foot of a column goes on at the head of the next
    counts = np.diff(numbers[times == 1], prepend=0, append=height * width)
    counts = counts[: len(counts) - (counts[-1] == 0)]
    return run_lengths.frPyObjects({"size": [height, width], "counts": counts.tolist()}, height, width)
