"""Video files, as OpenCV decodes them."""

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from revisit.errors import printable

_VIDEOS = ".3gp .asf .avi .f4v .flv .m2ts .m2v .m4v .mjpeg .mkv .mov .mp4 .mpeg .mpg .mts .mxf .ogv .ts .vob .webm .wmv"
VIDEOS = frozenset(_VIDEOS.split())
_USUAL = 25.0  # frames a second
_MOST_TICKS = 2**16 - 1  # in a second of MPEG-4


class VideoFile:
    """The frames of a video, (H, W, 3) uint8 RGB, in order; none of a file that is no video."""

    def __init__(self, path: Path):
        self._path = path
        self._capture = cv2.VideoCapture(str(path.absolute()))
        self.rate = _as_written(self._capture.get(cv2.CAP_PROP_FPS))  # frames a second
        self._stated = int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT))

    def __iter__(self) -> Iterator[np.ndarray]:
        while (read := self._capture.read())[0]:
            yield np.ascontiguousarray(read[1][..., ::-1])

    def problems_after(self, count: int) -> list[str]:
        """What is wrong with a video of which so many frames could be read."""
        if count and count >= self._stated:
            return []
        estimate = "; of a trimmed video, or one with longer sound, it says more than there are" if count else ""
        return [f"{self._path}: {count} frames can be read, of {max(self._stated, 0)} as its file says{estimate}"]


def problem_of_name(*paths: Path) -> str:
    """Why OpenCV does not open a video, "" where it does."""
    has_other_letters = any(printable(str(path)) != str(path) for path in paths)
    return "OpenCV opens no video whose name is not UTF-8, so rename it" if has_other_letters else ""


def _as_written(rate: float) -> float:
    """In as many digits as MPEG-4 holds, such as of a phone's slow motion; _USUAL of none, and of too many."""
    digits = next((digits for digits in (3, 2, 1, 0) if 0 < rate * 10**digits <= _MOST_TICKS), None)
    return _USUAL if digits is None else round(rate, digits) or _USUAL
