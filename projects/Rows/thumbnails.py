"""Small pictures of what the rows of a table are of: images, or boxes with a little around them."""

import logging
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from projects.Pictures.tiles import fit
from projects.Rows.row_table import RowTable
from revisit.data.images.reader import picture_of
from revisit.errors import UserError, first_few
from revisit.progress import progress
from revisit.threads import thread_pool

logger = logging.getLogger(__name__)

AROUND = 0.15  # of a box's sides, on each side
THREADS = 4
BACKGROUND = 238  # grey level around what is no square, and of what cannot be read


def thumbnails(table: RowTable, size: int) -> np.ndarray:
    """(N, size, size, 3) uint8 RGB. An image is read once for all its boxes; those that cannot be read are logged."""
    tiles = np.full((len(table.rows), size, size, 3), BACKGROUND, np.uint8)
    by_file = defaultdict(list)
    for place, file in enumerate(table.files.tolist()):
        by_file[file].append(place)

    pixels = table.pixels
    gone: list[str] = []

    def draw(file: str) -> None:
        try:
            image = picture_of({"file_name": file}, pixels)
        except UserError:  # moved since it was embedded
            gone.append(file)
            return
        for place in by_file[file]:
            tiles[place] = square(cut(image, table, place), size)

    with thread_pool(THREADS) as pool:
        list(progress("thumbnails", "image", pool.map(draw, by_file), total=len(by_file)))
    if gone:
        few = first_few(sorted(gone))
        logger.warning(f"{len(gone)} of {len(by_file)} images cannot be read, so their pictures are grey: {few}")
    return tiles


def cut(image: np.ndarray, table: RowTable, place: int) -> np.ndarray:
    """The part of an (H, W, 3) image that a row is of."""
    if table.about["of"] == "image":
        return image
    left, top, right, bottom = surroundings(table.boxes[place].tolist(), image.shape, AROUND)
    return image[top:bottom, left:right]


def surroundings(box: Sequence[float], shape: tuple[int, ...], around: float) -> tuple[int, int, int, int]:
    """Left, top, right and bottom px of a box with a share of its sides ``around``, inside an image of this shape: at
    least one pixel, also of a box without area at the far edge."""
    x0, y0, x1, y1 = box
    across, down = around * (x1 - x0), around * (y1 - y0)
    height, width = shape[:2]
    left, top = min(int(max(0, x0 - across)), width - 1), min(int(max(0, y0 - down)), height - 1)
    return left, top, int(min(width, x1 + across)) + 1, int(min(height, y1 + down)) + 1


def square(image: np.ndarray, size: int) -> np.ndarray:
    """(H, W, 3) uint8 -> (size, size, 3): the whole in the middle of grey."""
    tile = np.full((size, size, 3), BACKGROUND, np.uint8)
    if not image.size:
        return tile
    small = fit(image, size)
    height, width = small.shape[:2]
    top, left = (size - height) // 2, (size - width) // 2
    tile[top : top + height, left : left + width] = small
    return tile
