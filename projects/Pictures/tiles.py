"""The one composer of sheets and galleries: tiles in rows and columns with headers, captions, scales and a legend."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from projects.Pictures.fonts import font_of
from revisit.errors import printable, without_secrets
from revisit.files import written_whole

Color = tuple[int, int, int]  # RGB

TILE = 160  # px, the longer side of an image in a gallery
PANEL = 420  # px, that of an image to look at closely
GAP = 10  # px between tiles
LINE = 20  # px, of text
MARGIN = 16  # px around the sheet
HEADER = 240  # px, the most that a header widens its column
SWATCH = 34  # px, of a legend's colour and its distance to the name
LEGEND = 12  # px, of its letters
SCALE = 76  # px, of a depth scale with its numbers
BAR = 14  # px, of its colours
BLACK = (0, 0, 0)
GREY = (90, 90, 90)


class SheetRow(NamedTuple):
    """One row of a sheet."""

    tiles: list[np.ndarray]  # (h, w, 3) uint8 RGB, as many in every row
    captions: Sequence[str] = ()  # one below each tile, or one below the row
    legend: dict[int, tuple[str, Color]] = {}  # name and colour of what occurs in it, in the order of the keys
    depth_range: tuple[float, float] | None = None  # metres at the two ends of a scale next to it


def gallery(tiles: Sequence[np.ndarray], captions: Sequence[str], columns: int) -> list[SheetRow]:
    """Rows of tiles with a caption below each, the last one filled up with white."""
    blank = np.full((1, 1, 3), 255, np.uint8)
    rows = []
    for start in range(0, len(tiles), columns):
        part = list(tiles[start : start + columns])
        filled = part + [blank] * (columns - len(part))
        rows.append(SheetRow(filled, captions[start : start + columns]))
    return rows


def fit(image: np.ndarray, size: int = PANEL) -> np.ndarray:
    """The (H, W, 3) uint8 image with ``size`` px on its longer side."""
    scale = size / max(image.shape[:2])
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)


def framed(image: np.ndarray, color: Color, size: int = TILE) -> np.ndarray:
    """The fitted image with a frame of 3 px over its border."""
    tile = fit(image, size).copy()
    return cv2.rectangle(tile, (1, 1), (tile.shape[1] - 2, tile.shape[0] - 2), color, 3)


def outline(tile: np.ndarray, box: np.ndarray, color: Sequence[int], width: int = 1) -> None:
    """Draw a box (4,), x0, y0, x1, y1 px of the (h, w, 3) uint8 tile, in place, with lines of ``width`` px."""
    x0, y0, x1, y1 = np.round(box).astype(int).tolist()
    cv2.rectangle(tile, (x0, y0), (x1, y1), color, width, cv2.LINE_AA)


def color_depth(depth: np.ndarray, depth_range: tuple[float, float]) -> np.ndarray:
    """(H, W) metres -> (H, W, 3) uint8 RGB: blue at the near end and before it, yellow at the far end and beyond.

    Plasma has no black, which means: missing.
    """
    from matplotlib import colormaps  # not at start-up

    low, high = depth_range
    return colormaps["plasma"](np.clip((depth - low) / (high - low), 0, 1), bytes=True)[..., :3].copy()


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
    grid = _Grid.of(rows, headers)
    top = MARGIN + LINE * sum(map(bool, (title, subtitle, headers)))
    *tops, bottom = accumulate(grid.steps, initial=top)
    legend = _legend_lines(rows, grid.room)
    sheet = Image.new("RGB", (grid.room + 2 * MARGIN, bottom + LINE * len(legend) + MARGIN - GAP), "white")
    pen = _Pen(sheet, grid)
    pen.write(MARGIN, MARGIN + 8, title, grid.room, size=17, bold=True)
    pen.write(MARGIN, MARGIN + 8 + LINE * bool(title), subtitle, grid.room, size=12, color=GREY)
    for left, header, color in zip(grid.lefts, headers, header_colors or [BLACK] * len(headers), strict=False):
        pen.write(left + grid.width // 2, top - 10, header, grid.width, size=14, color=color, anchor="mm")
    for row, upper in zip(rows, tops, strict=True):
        pen.draw_row(row, upper)
    for n, entries in enumerate(legend):
        pen.draw_legend(entries, bottom + 8 + n * LINE, grid.room // len(legend[0]))
    with written_whole(path) as temporary:  # compressed little: of photographs a quarter of the time
        sheet.save(temporary, format="png", compress_level=1)


class _Grid(NamedTuple):
    """Where the tiles of a sheet stand, in px."""

    lefts: list[int]  # of the columns
    width: int  # of a column
    steps: list[int]  # from each row to the next
    room: int  # the width of all columns, with the scale of depths where there is one

    @classmethod
    def of(cls, rows: list[SheetRow], headers: Sequence[str]) -> _Grid:
        tiles = [tile for row in rows for tile in row.tiles]
        width = max([tile.shape[1] for tile in tiles] + [min(8 * len(header), HEADER) for header in headers])
        below = GAP + LINE * any(row.captions for row in rows)
        steps = [max(tile.shape[0] for tile in row.tiles) + below for row in rows]
        lefts = [MARGIN + n * (width + GAP) for n in range(len(rows[0].tiles))]
        room = lefts[-1] + width - MARGIN + SCALE * any(row.depth_range for row in rows)
        return cls(lefts, width, steps, room)


def _legend_lines(rows: list[SheetRow], room: int) -> list[list[tuple[str, Color]]]:
    """Name and colour of all that occurs in the rows, once, as many in a line as ``room`` px hold."""
    merged = {key: entry for row in rows for key, entry in row.legend.items()}
    entries = [merged[key] for key in sorted(merged)]
    names = [printable(without_secrets(name)) for name, _ in entries]
    widths = [max(8 * len(name), _font(font_of(name), LEGEND).getlength(name)) for name in names]
    count = max(1, int(room // (SWATCH + max(widths, default=0))))
    return [entries[n : n + count] for n in range(0, len(entries), count)]


class _Pen:
    """Writes and draws on a sheet, in px from its upper left corner."""

    def __init__(self, sheet: Image.Image, grid: _Grid):
        self._sheet = sheet
        self._grid = grid
        self._draw = ImageDraw.Draw(sheet)

    def write(
        self,
        x: int,
        y: int,
        text: str,
        span: int,
        *,
        size: int,
        color: Color = BLACK,
        bold: bool = False,
        anchor: str = "lm",
    ) -> None:
        """A line ``size`` px high, URLs without secrets; of one wider than ``span`` px only the end, which tells paths
        apart."""
        shown = text = printable(without_secrets(text))
        font = _font(font_of(text, bold), size)
        while text and font.getlength(shown) > span:
            text = text[1:]
            shown = f"…{text}"
        self._draw.text((x, y), shown, fill=color, font=font, anchor=anchor)

    def draw_row(self, row: SheetRow, top: int) -> None:
        """Each tile in the middle of its column, then the captions and the scale."""
        grid = self._grid
        bottom = top + max(tile.shape[0] for tile in row.tiles)
        for left, tile in zip(grid.lefts, row.tiles, strict=True):
            self._sheet.paste(Image.fromarray(tile), (left + (grid.width - tile.shape[1]) // 2, top))
        for left, caption in zip(grid.lefts, row.captions, strict=False):
            span = grid.room if len(row.captions) == 1 else grid.width
            self.write(left, bottom + 10, caption, span, size=11, color=GREY)
        if row.depth_range:
            self.draw_scale(row.depth_range, grid.lefts[-1] + grid.width + GAP, top, bottom)

    def draw_scale(self, metres: tuple[float, float], left: int, start: int, end: int) -> None:
        """A scale of depths between two heights, the farthest at the top."""
        near, far = metres
        ramp = np.tile(np.linspace(far, near, end - start)[:, None], BAR)
        self._sheet.paste(Image.fromarray(color_depth(ramp, metres)), (left, start))
        self.write(left + BAR + 4, start + 6, f"{far:.3g} m", SCALE, size=11)
        self.write(left + BAR + 4, end - 6, f"{near:.3g} m", SCALE, size=11)

    def draw_legend(self, entries: list[tuple[str, Color]], y: int, step: int) -> None:
        """One line of a legend, an entry every ``step`` px."""
        for n, (name, color) in enumerate(entries):
            x = MARGIN + n * step
            self._draw.rectangle((x, y - 6, x + 20, y + 6), fill=color, outline=BLACK)
            self.write(x + 28, y, name, step - SWATCH, size=LEGEND)


@cache
def _font(file: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(file, size)
