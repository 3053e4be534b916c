"""Which font draws a text: matplotlib's own, which has the letters of many languages, else one of this machine."""

import logging
from collections.abc import Iterable
from functools import cache

import numpy as np
from PIL import ImageFont

from detectron2.utils.logger import log_first_n


@cache
def font_of(text: str, bold: bool = False) -> str:
    """The file of matplotlib's own font where it has all letters of a text, else of the first of this machine's that
    has. Where none has, a warning says so, once."""
    own = own_font(bold)
    letters = _bits(map(ord, filter(str.isprintable, text)))
    if _has(own, letters):
        return own
    if other := next((font for font in _fonts() if _has(font, letters) and _draws(font, text)), ""):
        return other
    log_first_n(
        logging.WARNING,
        f"no font of this machine has all letters of {text}: they are drawn as squares until one is installed",
        name=__name__,
    )
    return own


@cache
def own_font(bold: bool = False) -> str:
    """The file of the one that comes with matplotlib."""
    from matplotlib.font_manager import FontProperties, findfont  # not at start-up

    return findfont(FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal"))


@cache
def _fonts() -> tuple[str, ...]:
    from matplotlib.font_manager import findSystemFonts

    return tuple(sorted(findSystemFonts()))


def _has(font: str, letters: int) -> bool:
    return letters & _letters_of(font) == letters


@cache
def _letters_of(font: str) -> int:
    """As _bits; none of a file that cannot be read, or whose letters have one size."""
    from matplotlib.ft2font import FT2Font

    try:
        face = FT2Font(font)
        return _bits(face.get_charmap() if face.scalable else ())
    except (RuntimeError, OSError):  # FreeType's
        return 0


def _bits(letters: Iterable[int]) -> int:
    """A bit for each letter that there is: a machine may have thousands of fonts, and a font 60,000 letters."""
    numbers = [*letters]
    is_there = np.zeros(max(numbers, default=0) + 1, bool)
    is_there[numbers] = True
    return int.from_bytes(np.packbits(is_there, bitorder="little").tobytes(), "little")


def _draws(font: str, text: str) -> bool:
    """Whether none of these letters is damaged in the font's file."""
    try:
        ImageFont.truetype(font, 12).getmask(text)
    except OSError:  # FreeType's
        return False
    return True
