"""Do two images show the same, pixel by pixel, but for what is cut off at their sides, light and compression?

Hashes and rows of a network call pages of text, or areas of one colour, alike that differ in all their pixels.
"""

from itertools import product

import cv2
import numpy as np

SIDE = 48  # px
ALIKE = 0.75  # correlation of two pictures; docs/results/curation.md
MARGIN = 5  # px that may be cut off at each side
LENGTHS = (38, 34, 36, 40, 42)  # px of a picture's middle in the other one, which has other parts cut off
FLAT = 1.0  # standard deviation in grey levels up to which there is nothing to correlate
LEVELS = 8  # by which two flat pictures differ at most


def picture_of(image: np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8 RGB -> (SIDE, SIDE, 3) uint8, what it looks like from afar."""
    return cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA)


def are_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether the middle of one picture is somewhere in the other with a correlation of ALIKE, up to a tenth larger or
    smaller; of flat pictures, whether no pixel differs by more than LEVELS."""
    grey, other_grey = (cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY) for picture in (one, other))
    middle = grey[MARGIN:-MARGIN, MARGIN:-MARGIN]
    if min(middle.std(), other_grey.std()) <= FLAT:
        return cv2.absdiff(one, other).max() <= LEVELS
    return any(_correlation(middle, other_grey, size) >= ALIKE for size in product(LENGTHS, LENGTHS))


def _correlation(middle: np.ndarray, grey: np.ndarray, size: tuple[int, int]) -> float:
    """The highest at any place, of the middle in this size, width and height."""
    resized = cv2.resize(middle, size, interpolation=cv2.INTER_LINEAR)
    return float(cv2.matchTemplate(grey, resized, cv2.TM_CCOEFF_NORMED).max())
