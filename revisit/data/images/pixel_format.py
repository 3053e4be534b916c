"""What the samples of images mean: one value, decided once, through which every image is read."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

COLOURS = ("red", "green", "blue")
Ranges = tuple[tuple[float, float], ...]  # values that become black and white: of each channel, or one of all
_LETTERS = {name[0]: name for name in COLOURS}


@dataclass(frozen=True)
class PixelFormat:
    """Who reads an image takes it with the record. What is no photograph is read by a plug-in (deep_images.py).

    Attributes:
        bits: of images with more than 8 bits a sample: values of 0 to 2**bits - 1 become grey levels of 0 to 255. 8 to
            16, or 1, floats of 0 to 1. None: nothing says it, and such images are refused.
        channels: their names, in the order in which networks see them. (): photographs, grey ones too, seen as RGB.
        files: of each channel that has a file of its own a pattern such as ``{}_nir.tif``. (): one file has all.
        ranges: of each channel, or one of all, which values become grey levels 0 and 255; values beyond are clipped.
            (): as ``bits`` say.
        nodata: value of pixels that say nothing, in addition to those that a file marks.
        fill: grey level, 0 to 255, of such pixels in each channel: the mean that a network takes away. (): 0.
        shown: red, green and blue of pictures, each a weight of every channel and then what is added, in grey levels.
            (): the channels that are called so, else the first three.
    """

    bits: int | None = None
    channels: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    ranges: Ranges = ()
    nodata: float | None = None
    fill: tuple[int, ...] = ()
    shown: tuple[tuple[float, ...], ...] = ()

    def __str__(self) -> str:
        """In a word of a log, "" of photographs of 8 bits."""
        if self.channels:
            return f"INPUT.CHANNELS {' '.join(self.channels)}"
        ranges = " ".join(f"{low:g} {high:g}" for low, high in self.ranges)
        return f"INPUT.RANGE {ranges}" * bool(ranges) or f"INPUT.BIT_DEPTH {self.bits}" * bool(self.bits)

    @property
    def is_of_photographs(self) -> bool:
        """Whether the core reads such images: by their own colours, and at most by ``bits``."""
        return not (self.channels or self.files or self.ranges or self.nodata is not None)

    @property
    def count(self) -> int:
        """Of the channels that networks see."""
        return len(self.channels) or len(COLOURS)

    @property
    def seen(self) -> Self:
        """What a network depends on: not where a set of images has its channels, what it marks, and what is shown."""
        return replace(self, files=(), nodata=None, fill=(), shown=())

    @property
    def colours(self) -> tuple[int, ...]:
        """Places of red, green and blue, by the channels' names; () where one is missing."""
        if not self.channels:
            return (0, 1, 2)
        names = [_LETTERS.get(name.lower(), name.lower()) for name in self.channels]
        return tuple(map(names.index, COLOURS)) if set(COLOURS) <= set(names) else ()

    @property
    def is_rgb(self) -> bool:
        """Whether networks see red, green and blue, in this order."""
        return self.count == len(COLOURS) and self.colours == (0, 1, 2)

    def picture(self, image: np.ndarray) -> np.ndarray:
        """The (H, W, 3) uint8 RGB that people are shown of an (H, W, C) uint8 image."""
        if not self.channels:
            return image
        if self.shown:
            mix = np.array(self.shown)
            levels = image @ mix[:, :-1].T.astype(np.float32) + mix[:, -1].astype(np.float32)
            return levels.clip(0, 255).astype(np.uint8)
        return np.ascontiguousarray(image[..., list(self._places_shown)])

    def caption(self, text: str) -> str:
        """``text`` below pictures, and which channels they show, unless these are the images' own colours."""
        if self.shown:
            ones = [[place for place, weight in enumerate(row) if weight] for row in self.shown]
            is_choice = all(len(places) == 1 and places[0] < self.count for places in ones)
            what = self._named(places[0] for places in ones) if is_choice else "principal components of the channels"
        else:
            what = "" if self.colours else self._named(self._places_shown)
        return "; ".join(filter(None, (text, what and f"shown: {what}")))

    @property
    def _places_shown(self) -> tuple[int, ...]:
        return self.colours or tuple(min(place, self.count - 1) for place in range(len(COLOURS)))

    def _named(self, places: Iterable[int]) -> str:
        return ", ".join(dict.fromkeys(self.channels[place] for place in places))


PHOTOGRAPHS = PixelFormat()  # RGB of 8 bits
