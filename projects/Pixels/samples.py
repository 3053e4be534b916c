"""What a file holds, in its own numbers: the samples of all its channels, and where it says that there is no data."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from revisit.data.images.image_bytes import DeepImageError
from revisit.data.images.opening import strips

_MOST_BYTES = 8  # of a sample


class Scan(NamedTuple):
    """What is known of a file before its image is read."""

    height: int  # px
    width: int
    has_marks: bool  # whether some of its pixels may have no data, by what the file says


class Samples(NamedTuple):
    """Of one image, upright."""

    values: np.ndarray  # (H, W, C) integers or floats, as the file has them
    marked: np.ndarray | None = None  # (H, W) bool, where a mark of the file or NaN says: no data
    names: tuple[str, ...] = ()  # of the channels, where the file says them
    is_colour: bool = False  # whether its tags call the first three channels red, green and blue
    alpha: np.ndarray | None = None  # (H, W), as the values: what the file calls transparency, and others a channel
    is_premultiplied: bool = False  # whether the values are those of the image times the share that alpha says

    @property
    def missing(self) -> np.ndarray | None:
        """(H, W) bool, where it is marked, or its transparency is 0; None where that is nowhere."""
        return any_of(self.marked, None if self.alpha is None else self.alpha == 0)

    def changed(self, change: Callable[[np.ndarray], np.ndarray]) -> "Samples":
        """With what ``change`` makes of each (H, W, ...) array, for which pixels trade places or are left out."""
        marked, alpha = (None if each is None else change(each) for each in (self.marked, self.alpha))
        return self._replace(values=change(self.values), marked=any_of(marked), alpha=alpha)


def with_missing(samples: Samples, *masks: np.ndarray | None) -> Samples:
    """In the numbers of this machine; marked, too, where one of the (H, W) bool masks is, or a channel has no finite
    value.

    Raises:
        DeepImageError: other values than integers and floats of up to 64 bits.
    """
    values = samples.values
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > _MOST_BYTES:
        raise DeepImageError(f"samples of {values.dtype}: expected integers or floats of up to 64 bits")
    if not values.size:
        raise DeepImageError(f"an image of shape {values.shape}: expected a pixel at least")
    kind = np.uint8 if values.dtype.kind == "b" else values.dtype.newbyteorder("=")
    values = np.ascontiguousarray(values, kind)
    of_values = None if kind == np.uint8 or values.dtype.kind != "f" else ~np.isfinite(values).all(axis=-1)
    return samples._replace(values=values, marked=any_of(samples.marked, *masks, of_values))


def straight(samples: Samples) -> Samples:
    """With the values of the image, where those of the file are premultiplied: as PIL has them, rounded down, and 0
    where all is transparent."""
    if not samples.is_premultiplied:
        return samples
    values, kind = samples.values, samples.values.dtype
    top = 1 if kind.kind == "f" else np.iinfo(kind).max
    is_seen = (samples.alpha > 0)[..., None]
    shares = np.where(is_seen, samples.alpha[..., None], kind.type(top))
    own = np.empty_like(values)
    for rows in strips(*shares.shape[:2]):
        if kind.kind == "f":
            own[rows] = values[rows] / shares[rows]
        else:
            own[rows] = np.minimum(values[rows].astype(np.uint64) * np.uint64(top) // shares[rows], top)
    return samples._replace(values=own * is_seen, is_premultiplied=False)


def any_of(*masks: np.ndarray | None) -> np.ndarray | None:
    """Where one of the masks is; None where that is nowhere."""
    marks = [mask for mask in masks if mask is not None]
    joined = np.logical_or.reduce(marks) if marks else np.zeros(1, bool)
    return joined if joined.any() else None
