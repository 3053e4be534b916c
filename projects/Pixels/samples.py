"""What a file holds, in its own numbers: the samples of all its channels, and where it says that there is no data."""

from typing import NamedTuple

import numpy as np


class Samples(NamedTuple):
    """Of one image, upright."""

    values: np.ndarray  # (H, W, C) integers or floats, as the file has them
    missing: np.ndarray | None = None  # (H, W) bool, where a mark of the file, NaN or transparency says: no data
    names: tuple[str, ...] = ()  # of the channels, where the file says them
    is_colour: bool = False  # whether its tags call the first three channels red, green and blue
