"""Names of data sets of windows: ``tiles:TILING:NAME``, and those that are made of such."""

import re

from projects.Pixels.channel_files import FILES
from projects.Tiles.windows import Tiling
from revisit.errors import expect

TILES = "tiles"  # the word before the colon of a data set's name
_IN_NAME = re.compile(rf"(?:^|:){TILES}:([^:]+):")


def tiling_in(name: str) -> Tiling | None:
    """Of a data set of windows, or of one that is made of it; None of whole images."""
    match = _IN_NAME.search(name)
    return Tiling.of(match[1]) if match else None


def tiling_and_name(name: str) -> tuple[Tiling | None, str]:
    """Of the name of a data set of windows how they are cut, and the data set that is; of another one None, and itself.

    Raises UserError for what is no tiling.
    """
    kind, _, rest = name.partition(":")
    text, _, whole = rest.partition(":")
    return (Tiling.of(text), whole) if kind == TILES else (None, name)


def whole_of(name: str) -> str:
    """The data set of whole images on which one of their windows is scored, also where channels are files of their own.

    Raises UserError for a part of the windows: nothing says what of an image these would be scored on.
    """
    files = f"{FILES}:" * name.startswith(f"{FILES}:")
    tiling, whole = tiling_and_name(name.removeprefix(files))
    problem = f"{name}: some of the windows of images have no score on whole images"
    expect(tiling, f"{problem}: expected all windows of a data set, {TILES}:{tiling_in(name)}:NAME")
    return files + whole
