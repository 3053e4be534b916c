"""Objects planted on the seams of windows, an exact detector of them by rule, and what merging makes of its boxes."""

from typing import NamedTuple

import numpy as np

from projects.Tiles.merging import OUTWARD, Found
from projects.Tiles.windows import inside, windows
from revisit.boxes.boxes import iou, matched, sides_of

GAPS = (3, 7)  # px between close neighbours, the last excluded
CLOSE = 0.4  # of the draws are next to another one
SMALLEST, LARGEST = 0.2, 1.5  # of a window, an object's sides
LEAST = 1 / 64  # of a window, from which on a side that is visible is seen
DRAWN = 64  # boxes at once, until one fits
STRICT = 0.75  # IoU from which on an object is found again


class Scan(NamedTuple):
    """What there is to find."""

    side: int  # px of the square image
    windows: np.ndarray  # (n, 4) int
    boxes: np.ndarray  # (N, 4) float64 xyxy, whole px, which do not overlap
    on_seam: np.ndarray  # (N,) bool: an inner border of a window cuts it


class Verdict(NamedTuple):
    """What became of the planted objects."""

    inside: float  # recall of those that no border cuts
    on_seams: float  # recall of the others
    doubles: int  # boxes that lie in an object that has another one, or is not found by them
    merged: int  # boxes that hold most of two objects


def plant(tile: int, overlap: int, count: int, on_seams: int, rng: np.random.Generator) -> Scan:
    """Objects of 0.2 to 1.5 windows, ``on_seams`` of them cut by borders and half of these by two that
    cross; half of all are a few px from another one. The scan has 1.2 windows for each object."""
    side = int(tile * 1.1 * count**0.5)
    cut = inside(windows(side, side, tile, overlap), side, side)
    lines = np.setdiff1d(cut[:, [0, 2]], [0, side])
    boxes = np.zeros((count, 4))
    on_seam = np.arange(count) < on_seams
    for place in range(count):
        boxes[place] = _place(boxes[:place], on_seam[place], place % 3 == 0, tile, side, lines, rng)
    return Scan(side, cut, boxes, on_seam)


def _place(
    others: np.ndarray, cut: bool, twice: bool, tile: int, side: int, lines: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """One more box, the first that fits of those that are drawn."""
    while True:
        boxes = _drawn(others, cut, twice, tile, side, lines, rng)
        crossed = np.searchsorted(lines, boxes[:, 2:], "left") > np.searchsorted(lines, boxes[:, :2], "right")
        boxes = boxes[(boxes.min(axis=1) >= 0) & (boxes.max(axis=1) <= side) & (crossed.any(axis=1) == cut)]
        grown = boxes + (GAPS[0] - 1) * OUTWARD
        free = ~(iou(grown, others) > 0).any(axis=1)
        if free.any():
            return boxes[free][0]


def _drawn(
    others: np.ndarray, cut: bool, twice: bool, tile: int, side: int, lines: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """(DRAWN, 4): anywhere, on a line or on two that cross, or close to another one."""
    sides = np.exp(rng.uniform(np.log(SMALLEST * tile), np.log(LARGEST * tile), (DRAWN, 2))).round()
    corners = rng.integers(0, side, (DRAWN, 2)).astype(float)
    if cut:
        axes = [0, 1] if twice else [rng.integers(2)]
        back = (sides * rng.uniform(0.02, 0.98, sides.shape)).round()
        corners[:, axes] = (rng.choice(lines, sides.shape) - back)[:, axes]
    if len(others) and rng.random() < CLOSE:
        near, axis = rng.choice(others, DRAWN), rng.integers(2)
        corners = near[:, :2] + rng.integers(-9, 10, sides.shape)
        corners[:, axis] = near[:, 2 + axis] + rng.integers(*GAPS, DRAWN)
    return np.concatenate([corners, corners + sides], axis=1)


def detect(scan: Scan, rng: np.random.Generator, noise: float = 0.0) -> Found:
    """What each window shows of each object, clipped to it, if both of its sides are long enough to be seen.

    Args:
        noise: standard deviation of an edge, of the visible side. A box still ends at its window.
    """
    seen = scan.windows[:, None].astype(float)
    boxes = np.concatenate([np.maximum(scan.boxes, seen)[..., :2], np.minimum(scan.boxes, seen)[..., 2:]], axis=2)
    least = LEAST * sides_of(seen).max(axis=2, keepdims=True)
    origins, which = np.nonzero((sides_of(boxes) >= least).all(axis=2))
    boxes = boxes[origins, which]
    boxes += rng.normal(0, noise, boxes.shape) * np.tile(sides_of(boxes), 2)
    window = scan.windows[origins]
    boxes = np.clip(boxes, np.tile(window[:, :2], 2), np.tile(window[:, 2:], 2))
    order = rng.permutation(len(boxes))
    scores = rng.uniform(0.3, 1, len(boxes))
    return Found(boxes[order], scores, np.zeros(len(boxes), int), origins[order])


def with_reduced(scan: Scan) -> Scan:
    """A pass over the reduced whole more: it shows what has a 64th of the image's side."""
    return scan._replace(windows=np.concatenate([scan.windows, [[0, 0, scan.side, scan.side]]]))


def judge(scan: Scan, boxes: np.ndarray, least: float = STRICT) -> Verdict:
    """Of (M, 4) boxes, best first, what was planted."""
    overlap = iou(boxes, scan.boxes)
    taken = matched(np.where(overlap >= least, overlap, 0))
    is_found = np.isin(np.arange(len(scan.boxes)), taken)
    of_box = iou(scan.boxes, boxes, np.ones(len(boxes), bool))  # the share of an object that lies in a box
    is_merged = (of_box > 0.5).sum(axis=0) > 1
    return Verdict(
        float(is_found[~scan.on_seam].mean()),
        float(is_found[scan.on_seam].mean()),
        int(((taken < 0) & ~is_merged).sum()),
        int(is_merged.sum()),
    )
