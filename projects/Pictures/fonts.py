"""Which font draws a text: matplotlib's own, which has the letters of many languages, else one of this machine."""

import logging
from functools import cache

from detectron2.utils.logger import log_first_n


@cache
def font_of(text: str, bold: bool = False) -> str:
    """The file of matplotlib's own font where it has all letters of a text, else of the first of this machine's that
    has. Where none has, a warning says so, once."""
    own = own_font(bold)
    letters = frozenset(map(ord, filter(str.isprintable, text)))
    if letters <= _letters_of(own):
        return own
    if found := next((font for font in _fonts() if letters <= _letters_of(font)), ""):
        return found
    message = f"no font of this machine has all letters of {text}: they are drawn as squares until one is installed"
    log_first_n(logging.WARNING, message, name=__name__)
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


@cache
def _letters_of(font: str) -> frozenset[int]:
    """None of a file that cannot be read, or whose letters have one size."""
    from matplotlib.ft2font import FT2Font

    try:
        face = FT2Font(font)
    except (RuntimeError, OSError):  # FreeType's
        return frozenset()
    return frozenset(face.get_charmap()) if face.scalable else frozenset()
