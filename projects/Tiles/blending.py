"""What a network says of every pixel, window by window, blended into the whole image.

Where windows overlap, each counts the less the nearer its inner border is: from 1 at the overlap's px from it, and at
the image's border, down to almost 0. Scores wait in files, two bytes for each class and pixel, depths four, until their
image is done: 21 GB for 20,000 x 20,000 px of 20 classes by windows 1024+128. Memory holds a tile of the image.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from projects.Tiles.converting import TILE
from projects.Tiles.windows import Tiling, common, in_file, meeting
from revisit.arrays import map_array
from revisit.data.images.image_bytes import PADDED, WINDOW, Size, Window
from revisit.data.sources.labels import VOID
from revisit.errors import expect
from revisit.files import written_whole

_ONE = 2**16 - 1  # a score of 1, as it is stored


class Blended(NamedTuple):
    """A tile of an image."""

    window: Window
    scores: np.ndarray  # (C, h, w) float32: of classes, up to _ONE, or depths in metres
    is_seen: np.ndarray  # (h, w) bool: whether any window has the pixel

    @property
    def classes(self) -> np.ndarray:
        """(h, w) uint8, VOID where no window is."""
        return np.where(self.is_seen, self.scores.argmax(axis=0).astype(np.uint8), np.uint8(VOID))

    @property
    def depth(self) -> np.ndarray:
        """(h, w) float32 metres, 0 where no window is."""
        return self.scores[0]


class Scores(NamedTuple):
    """Of the windows of an image, each in a file."""

    folder: Path
    windows: list[Window]
    size: Size  # of the image
    overlap: int  # px of the file, over which a window fades out

    @classmethod
    def of(cls, folder: Path, windows: list[Window], size: Size, tiling: Tiling) -> "Scores":
        """Of windows of a tiling."""
        return cls(folder, windows, size, max(1, in_file(tiling.overlap, tiling.scale)))

    def write(self, record: dict, output: dict) -> None:
        """What a network has put out for a window, whole or not at all: ``sem_seg``, logits (C, H, W), or ``depth``,
        (H, W) metres, of which what is padded is left out. Raises UserError for an output in another size."""
        left, top, right, bottom = window = tuple(record[WINDOW])
        values = output["depth"][None] if "depth" in output else output["sem_seg"]
        problem = f"windows of {record['file_name']} are answered in {values.shape[1]} x {values.shape[2]} px"
        expect({*values.shape[1:]} == {record[PADDED]}, f"{problem}: expected TEST.RESIZE_BACK bilinear")
        self.folder.mkdir(parents=True, exist_ok=True)
        with written_whole(self._file(window), lasting=False) as temporary, open(temporary, "wb") as file:
            np.save(file, _stored(values, is_depth="depth" in output)[:, : bottom - top, : right - left])

    def _file(self, window: Window) -> Path:
        return self.folder / "{}_{}_{}_{}.npy".format(*window)

    @property
    def are_complete(self) -> bool:
        """Whether those of all windows are there."""
        return all(self._file(window).exists() for window in reversed(self.windows))  # the last ones lack first

    def tiles(self) -> Iterator[Blended]:
        """The whole image, in tiles of TILE px, row by row."""
        height, width = self.size
        for top in range(0, height, TILE):
            for left in range(0, width, TILE):
                yield self._tile((left, top, min(left + TILE, width), min(top + TILE, height)))

    def _tile(self, tile: Window) -> Blended:
        height, width = tile[3] - tile[1], tile[2] - tile[0]
        scores, weights = np.zeros((1, height, width), np.float32), np.zeros((height, width), np.float32)
        windows = np.reshape(self.windows, (-1, 4))
        for window in windows[meeting(tile, windows.T)]:
            both = common(window, np.array(tile))
            weight = np.outer(self._fading(window, both, axis=1), self._fading(window, both, axis=0))
            values = self._read(window, both) * weight
            if len(scores) < len(values):
                scores = np.zeros((len(values), height, width), np.float32)
            rows, columns = _inside(tile, both)
            scores[:, rows, columns] += values
            weights[rows, columns] += weight
        return Blended(tile, scores / np.where(weights > 0, weights, 1), weights > 0)

    def _read(self, window: Window, part: Window) -> np.ndarray:
        """(C, h, w) of a part of a window, shares of _ONE or metres."""
        rows, columns = _inside(window, part)
        stored = map_array(self._file(window))[:, rows, columns]
        return np.asarray(stored, np.float32)

    def _fading(self, window: Window, part: Window, axis: int) -> np.ndarray:
        """(n,) float32 weights of a window's px along an axis, 0 of x, in a part of it."""
        start, stop, place = window[axis], window[axis + 2], np.arange(part[axis], part[axis + 2]) + 0.5
        length = self.size[1 - axis]
        before = place - start if start > 0 else np.inf
        after = stop - place if stop < length else np.inf
        return (np.minimum(np.minimum(before, after), self.overlap) / self.overlap).astype(np.float32)

    def remove(self) -> None:
        """Once the image is done."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _stored(values: Tensor, is_depth: bool) -> np.ndarray:
    values = values.detach().float()
    if is_depth:
        return values.cpu().numpy()
    return torch.softmax(values, dim=0).mul(_ONE).round().cpu().numpy().astype(np.uint16)


def _inside(window: Window, part: Window) -> tuple[slice, slice]:
    """Rows and columns of a part that lies in a window."""
    left, top, right, bottom = part
    return slice(top - window[1], bottom - window[1]), slice(left - window[0], right - window[0])
