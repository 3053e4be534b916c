"""A scan as small JPEGs in levels, each half as large as the one before: what a page needs that zooms into it."""

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from projects.Predict.file_predictions import read_picture, write_image
from revisit.data.images.image_bytes import Window

TILE = 512  # px of each side
BLOCK = 2  # the level of which a tile is made of one piece of the scan, of 2,048 px, that is read at once
QUALITY = 80  # of JPEG
Place = tuple[int, int]  # of a tile: the column and the row in its level


class Levels(NamedTuple):
    """Level 0 is the scan as it is; a pixel of each other one is the mean of 2 x 2 of the one before, rounded, or of
    those that there are at a border. The last one is a tile. Blocks may be made in any order, by several processes.
    """

    folder: Path  # gets LEVEL/COLUMN_ROW.jpg
    kept: Path  # the folder for a PNG of each block, until ``write_rest`` has read it
    height: int  # px of the scan
    width: int

    @property
    def depth(self) -> int:
        tiles = -(-max(self.height, self.width) // TILE)
        return max(BLOCK, (tiles - 1).bit_length()) + 1

    @property
    def blocks(self) -> list[Place]:
        """Row by row."""
        return _places(*self._shape(BLOCK))

    def window(self, block: Place) -> Window:
        """What a block has of the scan, px."""
        side = TILE << BLOCK
        left, top = (place * side for place in block)
        return left, top, min(left + side, self.width), min(top + side, self.height)

    def write_block(self, block: Place, picture: np.ndarray) -> None:
        """Write all tiles below BLOCK of an (H, W, 3) uint8 RGB picture of its window, and keep its own."""
        self.folder.mkdir(exist_ok=True)
        for level in range(BLOCK):
            first = [place << (BLOCK - level) for place in block]
            height, width = picture.shape[:2]
            for column, row in _places(-(-width // TILE), -(-height // TILE)):
                part = picture[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]
                self._write_tile(level, (first[0] + column, first[1] + row), part)
            picture = halved(picture)
        write_image(self._kept(block), picture)

    def write_rest(self) -> None:
        """Write the tiles from BLOCK on, when all blocks are there. A few of each level are in memory."""
        self._made(self.depth - 1, (0, 0))

    def _made(self, level: int, place: Place) -> np.ndarray:
        """A tile, which is written after all that it is made of."""
        if level == BLOCK:
            tile = read_picture(self._kept(place))
        else:
            tile = halved(self._four(level - 1, place))
        self._write_tile(level, place, tile)
        return tile

    def _four(self, level: int, place: Place) -> np.ndarray:
        """The tiles of a level of which one of the next is made, side by side."""
        columns, rows = (range(2 * at, min(2 * at + 2, end)) for at, end in zip(place, self._shape(level), strict=True))
        return np.concatenate([np.concatenate([self._made(level, (x, y)) for x in columns], axis=1) for y in rows])

    def _shape(self, level: int) -> Place:
        """Columns and rows."""
        side = TILE << level
        return -(-self.width // side), -(-self.height // side)

    def _write_tile(self, level: int, place: Place, tile: np.ndarray) -> None:
        path = self.folder / str(level) / "{}_{}.jpg".format(*place)
        write_image(path, tile, cv2.IMWRITE_JPEG_QUALITY, QUALITY, lasting=False)

    def _kept(self, block: Place) -> Path:
        return self.kept / "{}_{}.png".format(*block)


def _places(columns: int, rows: int) -> list[Place]:
    return [(column, row) for row in range(rows) for column in range(columns)]


def halved(picture: np.ndarray) -> np.ndarray:
    """(ceil(H / 2), ceil(W / 2), C) uint8 of (H, W, C): means of 2 x 2 pixels, or of those that there are; half a grey
    level is rounded up."""
    height, width = picture.shape[:2]
    even = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge").astype(np.uint16)
    rows = even[0::2] + even[1::2]
    return ((rows[:, 0::2] + rows[:, 1::2] + 2) >> 2).astype(np.uint8)
