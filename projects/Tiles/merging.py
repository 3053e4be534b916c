"""From what a detector found in windows of an image to the objects of the whole image.

An object that ends at an *inner* border of its window, one that is not the image's, is a fragment: it may go on beyond.

- A fragment gives way to an object that another window sees whole, where both look alike inside the fragment's window.
- Fragments of several windows that look alike where both windows see are one object; windows that share nothing have
  their common edge to compare.
- A pass over the reduced whole image, whose window is the image, counts for what is larger than half a window. It gives
  way to what a window sees whole, and fragments give way to it, unless it is much less sure.
- Then non-maximum suppression within each class, as a detector does in each image.

Only what windows that meet have found is compared.
"""

from typing import Any, NamedTuple, Self

import numpy as np
from pycocotools import mask as run_lengths
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from revisit.boxes.boxes import IOU, iou_of_pairs, sides_of
from revisit.errors import expect

Runs = dict[str, Any]  # a mask's run lengths in COCO's format, compressed
OUTWARD = np.array([-1, -1, 1, 1])  # where left, top, right and bottom lie
NEAR = 1.5  # px from a border, within which an object ends there; farther, if
NEAR_SHARE = 0.05  # of the object's side, and
NEAR_SHARED = 0.5  # of what neighbours share are not exceeded: so far the next window tells whether it goes on
EDGE = 1.0  # px by which windows and what they cut are taken to go on, so that windows that only touch have an edge
LARGE = 0.5  # of a window's side, from which on an object of the reduced whole counts
SURE = 0.5  # of a fragment's score, from which on it gives way to the reduced whole
MOST_PIXELS = 2**32 - 1  # of an image: pycocotools counts in 32 bits


class Found(NamedTuple):
    """N detections in windows of one image."""

    boxes: np.ndarray  # (N, 4) float64 xyxy px of the whole image
    scores: np.ndarray  # (N,) float64
    classes: np.ndarray  # (N,) int
    origins: np.ndarray  # (N,) int, the row of the window
    masks: list[Runs] | None = None  # N of the whole image

    def take(self, chosen: np.ndarray) -> Self:
        """Some of them, in the order of indices."""
        masks = None if self.masks is None else [self.masks[n] for n in chosen]
        return type(self)(*(values[chosen] for values in self[:4]), masks)


def merged(found: Found, windows: np.ndarray, height: int, width: int, nms: float = IOU) -> Found:
    """The objects of an image, by falling score; ``origins`` of joined fragments is the window of the largest.

    Each has the score, the class and the box of the detection that stays; of joined fragments the score of the largest,
    the box around all and their masks united. The order of ``found`` does not matter.

    Args:
        windows: (n, 4) int left, top, right, bottom px, inside the image.
        height, width: of the image, px.
        nms: IoU in [0, 1] above which the worse of two objects of a class goes.
    """
    image = np.array([0, 0, width, height])
    reduced = _reduced(windows, image)
    found = _in_order(_large_enough(found, windows, reduced))
    seen = windows[found.origins]
    cut = _cut_sides(found.boxes, seen, image, _shared(windows[~reduced]))
    reaching = np.where(cut, seen + EDGE * OUTWARD, found.boxes)
    pairs = _pairs(reaching, found, windows)
    is_reduced, is_whole = reduced[found.origins], ~cut.any(axis=1)
    alike = pairs[:, _alike(pairs, reaching, seen + EDGE * OUTWARD, is_whole)]
    sure = found.scores[alike[1]] >= SURE * found.scores[alike[0]]
    objects, places = _joined(found, is_whole, _groups(len(seen), alike[:, sure | ~is_reduced[alike[1]]]))
    behind = np.zeros(len(objects.scores), bool)
    behind[places[places >= 0]] = (is_reduced | ~is_whole)[places >= 0]
    return _in_order(objects.take(_suppressed(objects, behind, places[pairs], nms)))


def _reduced(windows: np.ndarray, image: np.ndarray) -> np.ndarray:
    """(n,) bool, of each window: whether it is a pass over the whole image beside smaller ones."""
    whole = (windows == image).all(axis=1)
    return whole & ~whole.all()


def _large_enough(found: Found, windows: np.ndarray, reduced: np.ndarray) -> Found:
    least = LARGE * sides_of(windows[~reduced]).max(initial=0)
    return found.take(np.flatnonzero(~reduced[found.origins] | (sides_of(found.boxes).max(axis=1) >= least)))


def _in_order(found: Found) -> Found:
    """By falling score; equal ones in an order of their own, whatever the order they came in."""
    return found.take(np.lexsort((found.origins, *found.boxes.T, found.classes, -found.scores)))


def _shared(windows: np.ndarray) -> int:
    """Px that all neighbours in a grid share at least, or 0."""
    axes = [(np.unique(windows[:, axis]), np.unique(windows[:, 2 + axis])) for axis in (0, 1)]
    return max(0, min((ends[:-1] - starts[1:]).min(initial=MOST_PIXELS) for starts, ends in axes))


def _cut_sides(boxes: np.ndarray, seen: np.ndarray, image: np.ndarray, shared: int) -> np.ndarray:
    """(N, 4) bool: which sides of boxes end at an inner border of the windows in which they were seen."""
    farther = np.minimum(NEAR_SHARE * np.tile(sides_of(boxes), 2), NEAR_SHARED * shared)
    near = np.maximum(NEAR, farther)
    return ((seen - boxes) * OUTWARD <= near) & ((image - seen) * OUTWARD > 0)


def _pairs(boxes: np.ndarray, found: Found, windows: np.ndarray) -> np.ndarray:
    """(2, P) all pairs of detections of one class, in both orders, whose boxes overlap and whose windows meet."""
    wide = windows + EDGE * OUTWARD
    order = np.argsort(found.origins, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(found.origins, minlength=len(windows)))[:-1])
    by_area = np.argsort(sides_of(windows).prod(axis=1), kind="stable")  # so the reduced whole is met, and meets none
    parts = [np.zeros((2, 0), int)]
    for place, window in enumerate(by_area):
        later = by_area[place:]
        own = members[window]
        others = np.concatenate([members[n] for n in later[_overlap(wide[window], wide[later])]])
        rows, columns = np.nonzero(
            (found.classes[own, None] == found.classes[others]) & _overlap(boxes[own, None], boxes[others])
        )
        parts.append(np.stack([own[rows], others[columns]]))
    pairs = np.concatenate(parts, axis=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    return np.concatenate([pairs, pairs[::-1]], axis=1)


def _overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(...) bool of (..., 4) each, which are broadcast."""
    in_x = (boxes[..., 0] < others[..., 2]) & (others[..., 0] < boxes[..., 2])
    return in_x & (boxes[..., 1] < others[..., 3]) & (others[..., 1] < boxes[..., 3])


def _alike(pairs: np.ndarray, boxes: np.ndarray, seen: np.ndarray, is_whole: np.ndarray) -> np.ndarray:
    """(P,) bool, of pairs: whether the first is a fragment, and the second, of another window, the same object: both
    agree in what the first's window sees of the second, or, of two fragments, in what both windows see."""
    first, second = pairs
    other = np.where(is_whole[second, None], seen[first], seen[second])
    both = np.where(OUTWARD < 0, np.maximum(seen[first], other), np.minimum(seen[first], other))
    overlap = iou_of_pairs(_clipped(boxes[first], both), _clipped(boxes[second], both))
    is_other = (seen[first] != seen[second]).any(axis=1)
    return (overlap >= IOU) & ~is_whole[first] & is_other


def _clipped(boxes: np.ndarray, regions: np.ndarray) -> np.ndarray:
    return np.clip(boxes, np.tile(regions[:, :2], 2), np.tile(regions[:, 2:], 2))


def _groups(count: int, pairs: np.ndarray) -> np.ndarray:
    """(count,) int number of the group of each of ``count``, of which (2, P) pairs belong together."""
    links = coo_array((np.ones(pairs.shape[1], bool), tuple(pairs)), shape=(count, count))
    return connected_components(links, directed=False)[1]


def _joined(found: Found, is_whole: np.ndarray, groups: np.ndarray) -> tuple[Found, np.ndarray]:
    """The objects: what is whole, and the fragments of each group that has nothing whole, as one. Also (N,) int, of
    each detection its object, or -1 where it gives way."""
    stays = is_whole | (np.bincount(groups, is_whole) == 0)[groups]
    number = np.where(is_whole, len(groups) + np.arange(len(groups)), groups)
    areas = sides_of(found.boxes).prod(axis=1)
    parts = np.lexsort((-areas, number))
    parts = parts[stays[parts]]
    is_first = np.diff(number[parts], prepend=-1) > 0
    starts = np.flatnonzero(is_first)
    objects = found.take(parts[starts])
    low, high = (np_end.reduceat(found.boxes[parts], starts) for np_end in (np.minimum, np.maximum))
    masks = None
    if found.masks is not None:
        masks = [run_lengths.merge([found.masks[n] for n in each]) for each in np.split(parts, starts[1:])]
    places = np.full(len(groups), -1)
    places[parts] = np.cumsum(is_first) - 1
    return objects._replace(boxes=np.where(OUTWARD < 0, low, high), masks=masks), places


def _suppressed(objects: Found, behind: np.ndarray, pairs: np.ndarray, nms: float) -> np.ndarray:
    """The indices that are left of objects when of each of (2, P) pairs that overlap too much the worse one goes: what
    is ``behind`` the others, then what has the lower score."""
    ranks = np.empty(len(behind), int)
    ranks[np.lexsort((-objects.scores, behind))] = np.arange(len(behind))
    better, worse = pairs[:, (pairs >= 0).all(axis=0)]
    chosen = (ranks[better] < ranks[worse]) & (iou_of_pairs(objects.boxes[better], objects.boxes[worse]) > nms)
    better, worse = better[chosen], worse[chosen]
    in_turn = np.argsort(ranks[better], kind="stable")
    stays = np.ones(len(behind), bool)
    for one, other in zip(better[in_turn].tolist(), worse[in_turn].tolist(), strict=True):
        stays[other] &= not stays[one]
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
    many = f"masks of an image of {width:,} x {height:,} px: expected at most {MOST_PIXELS:,} px"
    expect(height * width <= MOST_PIXELS, f"{many}; predict boxes, or cut the image")
    changes = np.diff(np.pad(mask.astype(np.int8), ((1, 1), (0, 0))), axis=0)
    columns, rows = np.nonzero(changes.T)
    ends = (left + columns) * height + top + rows
    numbers, times = np.unique(
        ends, return_counts=True
    )  # a run to the foot of a column goes on at the head of the next
    counts = np.diff(numbers[times == 1], prepend=0, append=height * width)
    counts = counts[: len(counts) - (counts[-1] == 0)]
    return run_lengths.frPyObjects({"size": [height, width], "counts": counts.tolist()}, height, width)
