"""What is suspected, to look at: a box with its surroundings, next to the most similar boxes of other images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from projects.Labels.suspects import Suspect
from projects.Pictures.pages import data_uri, template
from projects.Pictures.tiles import Color, SheetRow, fit, outline, save_sheet
from projects.Rows.row_table import RowTable
from projects.Rows.thumbnails import BACKGROUND, square, surroundings, thumbnails
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import picture_of
from revisit.errors import UserError
from revisit.progress import progress

SHOWN = 5  # neighbours of a suspect
ON_SHEET = 20  # suspects
TILE = 112  # px
SURROUNDINGS = 0.6  # of a box's sides, on each side
SUSPECTED: Color = (213, 94, 0)  # Okabe and Ito's, which people who see no red or no green tell apart, too
SUGGESTED: Color = (0, 158, 115)


def draw(folder: Path, suspects: Sequence[Suspect], table: RowTable, nearest: Sequence[np.ndarray], name: str) -> None:
    """Write suspects.png, the first ON_SHEET ones, if any, and suspects.html, all of them.

    Args:
        table: rows of all labels.
        nearest: of each suspect the rows of ``table`` to show next to it, at most SHOWN.
    """
    rows = _rows(suspects, table, nearest)
    (folder / "suspects.png").unlink(missing_ok=True)
    if rows:
        subtitle = table.pixels.caption(f"the first {min(ON_SHEET, len(rows))} of {len(rows)}")
        save_sheet(folder / "suspects.png", rows[:ON_SHEET], title=f"Suspected labels of {name}", subtitle=subtitle)
    strips = [data_uri(Image.fromarray(np.concatenate(row.tiles, axis=1))) for row in rows]
    names = [row.captions[1:] for row in rows]
    shown = list(zip(suspects, strips, names, strict=True))
    page = template("Labels", "suspects.html", "Reports")
    text = page.render(suspects=shown, name=table.pixels.caption(name), width=TILE * (SHOWN + 1), height=TILE)
    (folder / "suspects.html").write_text(text, encoding="utf-8", errors="backslashreplace")


def _rows(suspects: Sequence[Suspect], table: RowTable, nearest: Sequence[np.ndarray]) -> list[SheetRow]:
    """A row of a sheet for each suspect: itself, then what is most similar, with classes below."""
    together = np.concatenate([np.empty(0, int), *nearest])
    tiles = iter(thumbnails(table.of(together), TILE))
    blank = np.full((TILE, TILE, 3), BACKGROUND, np.uint8)
    rows, pixels = [], table.pixels
    for suspect, own in zip(progress("suspects", "box", suspects), nearest, strict=True):
        of_row = [suspect_tile(suspect, pixels), *(next(tiles) for _ in own)]
        captions = [f"{suspect.kind} {suspect.label or suspect.suggestion}", *table.classes[own].tolist()]
        lacking = SHOWN + 1 - len(of_row)
        rows.append(SheetRow(of_row + [blank] * lacking, captions + [""] * lacking))
    return rows


def suspect_tile(suspect: Suspect, pixels: PixelFormat) -> np.ndarray:
    """(TILE, TILE, 3) uint8 RGB: the box in its surroundings, and in another colour the one that is suggested; grey
    where the image cannot be read."""
    try:
        image = picture_of({"file_name": suspect.file_name}, pixels)
    except UserError:  # moved since
        return np.full((TILE, TILE, 3), BACKGROUND, np.uint8)
    is_whole = not any(suspect.box)
    if is_whole:
        return square(image, TILE)
    left, top, right, bottom = surroundings(suspect.box, image.shape, SURROUNDINGS)
    part = image[top:bottom, left:right]
    scale = TILE / max(part.shape[:2])
    enlarged = fit(part, TILE).copy()
    boxes = {SUSPECTED: suspect.box}
    if suspect.kind == "shifted":
        boxes[SUGGESTED] = [float(side) for side in suspect.suggestion.split()]
    for color, box in boxes.items():
        outline(enlarged, (np.array(box) - [left, top, left, top]) * scale, color, width=2)
    return square(enlarged, TILE)
