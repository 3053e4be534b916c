"""The one composer of sheets and galleries: tiles in rows and columns with headers, captions, scales and a legend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Color = tuple[int, int, int]  # RGB

TILE, PANEL = 160, 420  # px, the longer side of an image in a gallery, and of one to look at closely
GAP, LINE, MARGIN = 10, 20, 16  # px: between tiles, a line of text, around the sheet
HEADER, ENTRY, SCALE = 240, 34, 76  # px: the most that a header widens its column, a legend's colour, a depth scale
DPI = 100
BLACK, GREY = (0, 0, 0), (90, 90, 90)
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
    """Write a PNG: the rows below their columns' headers, then the legend of all rows. Tiles keep their pixels.

    Args:
        headers: one for each column, or none.
        header_colors: one for each header, or none for black.

    Raises:
        OSError: ``path`` cannot be written.
    """
    from matplotlib import cm, colors  # not at start-up; without pyplot, which would open windows
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    widest = max(tile.shape[1] for row in rows for tile in row.tiles)
    column = max([widest, *(min(8 * len(header), HEADER) for header in headers)])
    grid = _grid(rows, column)
    step_x, step_y = column + GAP, grid.shape[0] // len(rows)
    top = MARGIN + LINE * sum(map(bool, (title, subtitle, headers)))
    room = grid.shape[1] - GAP + SCALE * any(row.depth_range for row in rows)
    legend = sorted({key: entry for row in rows for key, entry in row.legend.items()}.items())
    per_line = max(1, room // max([ENTRY + 8 * len(name) for _, (name, _) in legend], default=1))
    width = room + 2 * MARGIN
    height = top + len(grid) + LINE * -(-len(legend) // per_line) + MARGIN - GAP

    figure = FigureCanvasAgg(Figure((width / DPI, height / DPI), DPI)).figure
    _write(figure, (MARGIN, MARGIN + 8), title, room, fontsize=12, weight="bold")
    _write(figure, (MARGIN, MARGIN + 8 + LINE), subtitle, room, GREY, fontsize=9)
    for n, (header, color) in enumerate(zip(headers, header_colors or [BLACK] * len(headers), strict=True)):
        _write(figure, (MARGIN + n * step_x + column / 2, top - 10), header, column, color, ha="center", fontsize=10)
    for n, row in enumerate(rows):
        start = top + n * step_y
        end = start + max(tile.shape[0] for tile in row.tiles)
        for place, caption in enumerate(row.captions):
            left, span = MARGIN + place * step_x, room if len(row.captions) == 1 else column
            _write(figure, (left, end + 10), caption, span, GREY, fontsize=8)
        if row.depth_range:
            left = MARGIN + grid.shape[1]
            bar = figure.add_axes((left / width, 1 - end / height, 14 / width, (end - start) / height))
            scale = cm.ScalarMappable(colors.Normalize(*row.depth_range), DEPTH_COLORS)
            figure.colorbar(scale, cax=bar, label="metres")
    for n, (_, entry) in enumerate(legend):
        place = MARGIN + n % per_line * (room // per_line), top + len(grid) + 8 + n // per_line * LINE
        _write_entry(figure, place, *entry, room // per_line)
    figure.canvas.draw()
    sheet = np.array(figure.canvas.buffer_rgba())[..., :3]
    area = sheet[top : top + len(grid), MARGIN : MARGIN + grid.shape[1]]
    np.minimum(area, grid, out=area)  # either is white where the other is not; figimage would resample the tiles
    Image.fromarray(sheet).save(path, compress_level=1)  # of photographs: a quarter of the time, 15 % more bytes


def _grid(rows: list[SheetRow], column: int) -> np.ndarray:
    """The rows without their text, (h, w, 3) uint8: each tile at the top and in the middle of its column."""
    tiles = [tile for row in rows for tile in row.tiles]
    height = max(tile.shape[0] for tile in tiles) + GAP + LINE * any(row.captions for row in rows)
    cells = np.full((len(tiles), height, column + GAP, 3), 255, np.uint8)
    for cell, tile in zip(cells, tiles, strict=True):
        left = (column - tile.shape[1]) // 2
        cell[: tile.shape[0], left : left + tile.shape[1]] = tile
    return cells.reshape(len(rows), -1, *cells.shape[1:]).swapaxes(1, 2).reshape(len(rows) * height, -1, 3)


def _write_entry(figure: Figure, place: tuple[float, float], name: str, color: Color, room: float) -> None:
    """Write an entry of the legend: its colour, then its name."""
    swatch = {"facecolor": np.array(color) / 255, "linewidth": 0.6, "pad": 1.5}
    _write(figure, (place[0] + 3, place[1]), "    ", room, fontsize=8, bbox=swatch)
    _write(figure, (place[0] + 28, place[1]), name, room - ENTRY, fontsize=9)


def _write(
    figure: Figure, place: tuple[float, float], text: str, room: float, color: Color = BLACK, **style: object
) -> None:
    """Write a line at px from the upper left; of one wider than ``room`` px only the end, which tells paths apart."""
    width, height = figure.get_size_inches() * DPI
    color = np.array(color) / 255
    line = figure.text(place[0] / width, 1 - place[1] / height, text, color=color, va="center", **style)
    while text and line.get_window_extent().width > room:
        text = text[1 + len(text) // 50 :]
        line.set_text(f"…{text}")
