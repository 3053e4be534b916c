"""Bars of one colour along the edges of an image, as films and images that were made square have them."""

from typing import NamedTuple

import numpy as np

CLOSE = 16  # of 255, the most by which a channel differs from a bar's colour: JPEG's blur
FEW = 0.02  # of a line's pixels, which may differ more
EDGE = 4  # lines after a bar, of which one differs from it in more than MOST of its pixels
MOST = 0.7


class Bars(NamedTuple):
    """Their thickness, px."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0

    def without(self, image: np.ndarray) -> np.ndarray:
        """The picture of an (H, W, ...) image, a view."""
        height, width = image.shape[:2]
        return image[self.top : height - self.bottom, self.left : width - self.right]

    def around(self, mask: np.ndarray) -> np.ndarray:
        """(H, W): a mask of the picture in its image."""
        return np.pad(mask, ((self.top, self.bottom), (self.left, self.right))) if any(self) else mask


def bars_of(image: np.ndarray) -> Bars:
    """Those of (H, W, 3) uint8: lines along an edge of one colour, up to one that differs from it all along; less than
    half of a side, and also those inside of others. The plain background around an object is none."""
    bars, inner = Bars(), _once(image)
    while any(inner):
        bars = Bars(*np.add(bars, inner).tolist())
        inner = _once(bars.without(image))
    return bars


def _once(image: np.ndarray) -> Bars:
    columns = image.swapaxes(0, 1)
    return Bars(*map(_thickness, (image, image[::-1], columns, columns[::-1])))


def _thickness(lines: np.ndarray) -> int:
    """Of a bar along the first of (n, m, 3) lines."""
    colour = np.median(lines[0], axis=0)

    def differing(line: np.ndarray) -> float:
        return (np.abs(line - colour) > CLOSE).any(axis=1).mean()

    less_than_half = lines[: (len(lines) + 1) // 2]
    end = next((number for number, line in enumerate(less_than_half) if differing(line) > FEW), 0)
    has_edge = any(differing(line) > MOST for line in lines[end : end + EDGE])
    return end if has_edge else 0
