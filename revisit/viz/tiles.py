"""The one composer of sheets and galleries: tiles in rows and columns with headers, captions, scales and a legend."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from revisit.errors import printable
from revisit.files import written_whole

Color = tuple[int, int, int]  # RGB

TILE, PANEL = 160, 420  # px, the longer side of an image in a gallery, and of one to look at closely
GAP, LINE, MARGIN = 10, 20, 16  # px: between tiles, a line of text, around the sheet
HEADER, ENTRY, SCALE = 240, 34, 76  # px: the most that a header widens its column, a legend's colour, a depth scale
DPI = 64  # a power of two, so that px divided by it are px again
BLACK, GREY = (0, 0, 0), "#5a5a5a"
DEPTH_COLORS = "plasma"  # has no black, which means: missing


class SheetRow(NamedTuple):
    """One row of a sheet."""

    tiles: list[np.ndarray]  # (h, w, 3) uint8 RGB, as many in every row
    captions: Sequence[str] = ()  # one below each tile, or one below the row
    legend: dict[int, tuple[str, Color]] = {}  # name and colour of what occurs in it, in the order of the keys
    depth_range: tuple[float, float] | None = None  # metres at the two ends of a scale beside it


def evenly_spread(total: int, count: int) -> list[int]:
    """``count`` of the indices below ``total``, or all if there are fewer, from the first to the last."""
    return np.linspace(0, total - 1, min(count, total)).astype(int).tolist()


def fit(image: np.ndarray, size: int = PANEL) -> np.ndarray:
    """The (H, W, 3) uint8 image with ``size`` px on its longer side."""
    scale = size / max(image.shape[:2])
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)


def framed(image: np.ndarray, color: Color, size: int = TILE) -> np.ndarray:
    """The fitted image with a frame of 3 px over its border."""
    tile = fit(image, size).copy()
    return cv2.rectangle(tile, (1, 1), (tile.shape[1] - 2, tile.shape[0] - 2), color, 3)


def save_sheet(
    path: Path,
    rows: list[SheetRow],
    headers: Sequence[str] = (),
    *,
    header_colors: Sequence[Color] = (),
    title: str = "",
    subtitle: str = "",
) -> None:
    """Write a PNG: the rows below their columns' headers, black without ``header_colors``, then the legend of all rows.
    Tiles keep their pixels. Raises OSError where ``path`` cannot be written."""
    from matplotlib import cm, colors  # not at start-up; without pyplot, which would open windows
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    widest = max(tile.shape[1] for row in rows for tile in row.tiles)
    column = max([widest, *(min(8 * len(header), HEADER) for header in headers)])
    grid = _grid(rows, column)
    step_x, step_y = column + GAP, grid.shape[0] // len(rows)
    top = MARGIN + LINE * sum(map(bool, (title, subtitle, headers)))
    room = grid.shape[1] - GAP + SCALE * any(row.depth_range for row in rows)
    legend = dict(sorted({key: entry for row in rows for key, entry in row.legend.items()}.items()))
    per_line = max(1, room // (ENTRY + 8 * max([len(name) for name, _ in legend.values()], default=0)))
    width = room + 2 * MARGIN
    height = top + len(grid) + LINE * -(-len(legend) // per_line) + MARGIN - GAP

    figure = Figure((width / DPI, height / DPI), DPI)
    page = figure.add_axes((0, 0, 1, 1))  # in px, from the upper left
    page.imshow(grid, extent=(MARGIN, MARGIN + grid.shape[1], top + len(grid), top), interpolation="none")
    page.set(xlim=(0, width), ylim=(height, 0), aspect="auto")
    page.axis("off")

    def write(x: float, y: float, text: str, span: float, size: int, **style: object) -> None:
        """A line ``size`` px high; of one wider than ``span`` px only the end, which tells paths apart."""
        letters = max(1, int(span / (0.6 * size)))
        text = text if len(text) <= letters else f"…{text[1 - letters :]}"
        page.text(x, y, printable(text), fontsize=size * 72 / DPI, va="center", **style)

    write(MARGIN, MARGIN + 8, title, room, 17, weight="bold")
    write(MARGIN, MARGIN + 8 + LINE, subtitle, room, 12, color=GREY)
    for n, (header, color) in enumerate(zip(headers, header_colors or [BLACK] * len(headers), strict=True)):
        write(MARGIN + n * step_x + column / 2, top - 10, header, column, 14, color=np.array(color) / 255, ha="center")
    for n, row in enumerate(rows):
        start = top + n * step_y
        end = start + max(tile.shape[0] for tile in row.tiles)
        for place, caption in enumerate(row.captions):
            write(
                MARGIN + place * step_x, end + 10, caption, room if len(row.captions) == 1 else column, 11, color=GREY
            )
        if row.depth_range:
            left = MARGIN + grid.shape[1]
            bar = figure.add_axes((left / width, 1 - end / height, 14 / width, (end - start) / height))
            scale = cm.ScalarMappable(colors.Normalize(*row.depth_range), DEPTH_COLORS)
            figure.colorbar(scale, cax=bar, label="metres")
    for n, (name, color) in enumerate(legend.values()):
        x, y = MARGIN + n % per_line * (room // per_line), top + len(grid) + 8 + n // per_line * LINE
        page.add_patch(Rectangle((x, y - 6), 20, 12, facecolor=np.array(color) / 255, edgecolor="black", linewidth=0.6))
        write(x + 28, y, name, room // per_line - ENTRY, 12)
    with written_whole(path) as temporary:  # compressed little: of photographs a quarter of the time
        figure.savefig(temporary, dpi=DPI, format="png", pil_kwargs={"compress_level": 1})


def _grid(rows: list[SheetRow], column: int) -> np.ndarray:
    """The rows without their text, (h, w, 3) uint8: each tile at the top and in the middle of its column."""
    tiles = [tile for row in rows for tile in row.tiles]
    height = max(tile.shape[0] for tile in tiles) + GAP + LINE * any(row.captions for row in rows)
    cells = np.full((len(tiles), height, column + GAP, 3), 255, np.uint8)
    for cell, tile in zip(cells, tiles, strict=True):
        left = (column - tile.shape[1]) // 2
        cell[: tile.shape[0], left : left + tile.shape[1]] = tile
    return cells.reshape(len(rows), -1, *cells.shape[1:]).swapaxes(1, 2).reshape(len(rows) * height, -1, 3)
