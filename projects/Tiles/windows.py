"""The one geometry of tiles: which windows of an image there are."""

import math
import re
from typing import NamedTuple, Self

import numpy as np

from revisit.errors import expect

_FORM = re.compile(r"(\d{1,9})(?:\+(\d{1,9}))?(?:@(\d{1,9}(?:\.\d{1,9})?))?")


class Tiling(NamedTuple):
    """How images are cut. Its text is ``1024+128@0.5``, of which what is the default may be left out."""

    tile: int  # px of each side, in the image scaled by ``scale``
    overlap: int = 0  # px that neighbours share, at least, in the scaled image
    scale: float = 1.0

    def __str__(self) -> str:
        overlap = f"+{self.overlap}" * bool(self.overlap)
        scale = np.format_float_positional(self.scale, trim="-")
        return f"{self.tile}{overlap}" + f"@{scale}" * (self.scale != 1)

    @property
    def side(self) -> int:
        """Of a window, in px of the file."""
        return in_file(self.tile, self.scale)

    @classmethod
    def of(cls, text: str) -> Self:
        """Raises UserError for what is no tiling."""
        match = _FORM.fullmatch(text)
        expect(match, f"tiles {text}: expected px, perhaps +overlap and @scale, such as 1024, 1024+128 or 1024+128@0.5")
        tile, overlap, scale = match.groups()
        tiling = cls(int(tile), int(overlap or 0), float(scale or 1))
        expect(tiling.tile > 0 and tiling.scale > 0, f"tiles {text}: expected sizes and scales above 0")
        shared = in_file(tiling.overlap, tiling.scale)
        expect(shared < tiling.side, f"tiles {text}: neighbours share all of their px: expected a smaller overlap")
        return tiling


def in_file(length: int, scale: float) -> int:
    """Px of the file for a length in px of the image scaled by ``scale``, rounded; half a px is rounded up."""
    return math.floor(length / scale + 0.5)


def windows(height: int, width: int, tile: int, overlap: int = 0, scale: float = 1.0) -> np.ndarray:
    """(n, 4) int64 left, top, right and bottom of windows, in px of an image's file, row by row.

    - Each has ``in_file(tile, scale)`` px on both sides, and neighbours share ``in_file(overlap, scale)`` or more.
    - They cover every px, and are as few as can be.
    - They lie inside, the last ones shifted to the border, where the image is larger than a window; where it is smaller
      they begin at 0 and end beyond it: what has no pixels is padded, never stretched (``inside``).

    Args:
        height, width: of the image, px, above 0.
        tile, overlap, scale: see Tiling; 0 <= overlap < tile.
    """
    side, shared = in_file(tile, scale), in_file(overlap, scale)
    tops, lefts = (_starts(length, side, side - shared) for length in (height, width))
    top, left = (corner.ravel() for corner in np.meshgrid(tops, lefts, indexing="ij"))
    return np.stack([left, top, left + side, top + side], axis=1)


def _starts(length: int, side: int, step: int) -> np.ndarray:
    """Along one axis."""
    further = max(0, -(-(length - side) // step))
    return np.minimum(np.arange(further + 1, dtype=np.int64) * step, max(0, length - side))


def meeting(window: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """Indices of boxes, of which (4, N) sides are given, that have a part in a window."""
    left, top, right, bottom = sides
    in_x = (window[0] < right) & (left < window[2])
    return np.flatnonzero(in_x & (window[1] < bottom) & (top < window[3]))


def common(boxes: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """(..., 4) what is in both, of (..., 4) each, which are broadcast; without area where they do not meet."""
    return np.clip(boxes, windows[..., [0, 1, 0, 1]], windows[..., [2, 3, 2, 3]])


def inside(windows: np.ndarray, height: int, width: int) -> np.ndarray:
    """(n, 4) what of the windows is in the image: they are smaller where that is."""
    return np.minimum(windows, np.array([width, height, width, height]))
