"""What in a table is most similar to an image or a box: printed and drawn."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from projects.Pictures.tiles import gallery, save_sheet
from projects.Rows.embedders import Named, embedder_of_table
from projects.Rows.embedding import rows_of
from projects.Rows.regions import Places
from projects.Rows.row_table import RowTable
from projects.Rows.thumbnails import cut, square, thumbnails
from revisit.data.images.reader import picture_of, read_size
from revisit.errors import expect
from revisit.evaluation.nearest import nearest

TILE, COLUMNS = 160, 6  # px, and tiles in a row of the sheet
SAME_PLACE = 0.5  # px by which the sides of a query's own box may differ


class Similar(NamedTuple):
    """The rows that are most similar to a query, best first."""

    places: np.ndarray  # (k,) int64
    cosines: np.ndarray  # (k,) float32


def similar_to(table: RowTable, query: Path, box: list[float] | None, count: int, named: Named) -> Similar:
    """Of the whole query where rows are of images, else of a ``box`` (x0, y0, x1, y1 px) in it; without its own row.

    Raises:
        UserError: a table of boxes and no box, or the other way round; an image that cannot be read; ``named`` are no
            weights, or not the table's.
    """
    of = table.about["of"]
    asked = "--boxes X0 Y0 X1 Y1" if of == "box" else "no --boxes"
    expect((of == "box") == (box is not None), f"the table has a row for each {of}: expected {asked}")
    if box is not None:
        _check_box(box, query)
    boxes = None if box is None else np.array([box], np.float32)
    row = rows_of([Places({"file_name": str(query)}, boxes, [""])], embedder_of_table(table.about, named))
    own = _own_row(table, query, box)
    places, cosines = nearest(row, table.rows, count, without=([True], own))
    return Similar(places[0].numpy(), cosines[0].numpy())


def _check_box(box: list[float], query: Path) -> None:
    """Raises UserError for one without area in the image."""
    x0, y0, x1, y1 = box
    size = read_size(query)
    across, down = min(x1, size["width"]) - max(x0, 0), min(y1, size["height"]) - max(y0, 0)
    expect(
        across > 0 and down > 0,
        f"--boxes {' '.join(f'{side:g}' for side in box)} has no area in an image of {size['width']} x "
        f"{size['height']} px: expected X0 Y0 X1 Y1, its left upper and its right lower corner",
    )


def _own_row(table: RowTable, query: Path, box: list[float] | None) -> np.ndarray:
    """Which rows are of the query itself, (N,) bool."""
    name = os.path.realpath(query)
    is_own = np.array([os.path.realpath(file) == name for file in table.files.tolist()])
    if box is None:
        return is_own
    return is_own & (np.abs(table.boxes - np.array(box)) <= SAME_PLACE).all(axis=1)


def lines_of(table: RowTable, similar: Similar) -> list[str]:
    """A line for each: its cosine, its name and its class."""
    chosen = table.of(similar.places)
    rows = zip(similar.cosines.tolist(), chosen.names, chosen.classes.tolist(), strict=True)
    return [f"{cosine:.3f}  {name}  {label}".rstrip() for cosine, name, label in rows]


def draw_similar(path: Path, table: RowTable, similar: Similar, query: Path, box: list[float] | None) -> None:
    """The query first, then what is similar to it, with cosine and class below."""
    chosen = table.of(similar.places)
    image = picture_of({"file_name": str(query)}, table.pixels)
    asked = table.of(similar.places[:0])._replace(boxes=np.array([box or [0, 0, 0, 0]], np.float32))
    tiles = [square(cut(image, asked, 0), TILE), *thumbnails(chosen, TILE)]
    captions = ["query"]
    for cosine, label in zip(similar.cosines.tolist(), chosen.classes.tolist(), strict=True):
        captions.append(f"{cosine:.3f} {label}".rstrip())
    rows = gallery(tiles, captions, COLUMNS)
    subtitle = table.pixels.caption(table.about["network"])
    save_sheet(path, rows, title=f"Most similar to {query.name}", subtitle=subtitle)
