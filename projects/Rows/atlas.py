"""An atlas: one HTML page, without network, of the rows of a table: a map, thumbnails, neighbours, colours."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from projects.Pictures.pages import data_uri, template
from projects.Rows.colours import columns_of
from projects.Rows.coordinates import coordinates
from projects.Rows.row_table import RowTable
from projects.Rows.thumbnails import thumbnails
from revisit.data.sources.records import sample
from revisit.errors import expect
from revisit.evaluation.nearest import nearest_others
from revisit.files import write_whole

MOST = 10_000  # rows of a page
NEIGHBOURS = 12
LISTED = 60  # pairs that are most alike, and rows that are least like any other
TILE = 64  # px
SIDE = 32  # tiles in a row and in a column of a sheet of sprites
QUALITY = 70  # of WebP
PLURAL = {"image": "images", "box": "boxes"}
STEPS = 10_000  # to which coordinates are rounded
ROOM = 38_000_000  # bytes of a page, in which its sheets have to fit


def write_atlas(path: Path, table: RowTable, how: str, columns: Path | None = None) -> int:
    """Write the page of a table, of at most MOST rows from all over it; returns how many it has.

    Args:
        how: one of coordinates.MAPS.
        columns: a CSV file, whose columns colour the points too.

    Raises:
        UserError: one row alone; see ``coordinates`` and ``columns_of``.
    """
    expect(len(table.rows) > 1, f"the table has {len(table.rows)} rows: an atlas expects at least two")
    shown = table.of(np.array(sample(range(len(table.rows)), MOST)))
    content = content_of(shown, how, columns)
    sheets = sprites(thumbnails(shown, TILE))
    page = template("Rows", "atlas.html").render(content=content, sheets=sheets, tile=TILE, side=SIDE)
    write_whole(path, page)
    return len(shown.rows)


def content_of(table: RowTable, how: str, columns: Path | None = None) -> dict[str, Any]:
    """What the page's script reads: names, places on the map, columns, neighbours, pairs and lonely rows."""
    others, cosines = (each.numpy() for each in nearest_others(table.rows, NEIGHBOURS))
    across, down = (coordinates(table.rows, how) * STEPS).round().astype(int).T.tolist()
    return {
        "title": f"{len(table.rows)} {PLURAL[table.about['of']]}",
        "network": table.pixels.caption(table.about["network"]),
        "map": how,
        "names": table.names,
        "x": across,
        "y": down,
        "columns": [each._asdict() for each in columns_of(table, columns)],
        "neighbours": others.tolist(),
        "cosines": (cosines * 1000).round().astype(int).tolist(),  # thousandths
        "pairs": pairs_of(others, cosines),
        "lonely": np.argsort(cosines[:, 0], kind="stable")[:LISTED].tolist(),
    }


def pairs_of(others: np.ndarray, cosines: np.ndarray) -> list[list[int]]:
    """The LISTED pairs of rows that are most alike, each once, as far as they are among the neighbours."""
    pairs = {}
    for place in np.argsort(-cosines, axis=None, kind="stable").tolist():
        row, rank = divmod(place, others.shape[1])
        other = int(others[row, rank])
        pairs.setdefault((min(row, other), max(row, other)), None)
        if len(pairs) == LISTED:
            break
    return [list(pair) for pair in pairs]


def sprites(tiles: np.ndarray) -> list[str]:
    """data: URIs of sheets of SIDE x SIDE tiles each, in order; of a lower quality where they would not fit."""
    quality = QUALITY
    sheets = _encoded(tiles, quality)
    while sum(map(len, sheets)) > ROOM and quality > 10:
        quality -= 20
        sheets = _encoded(tiles, quality)
    return sheets


def _encoded(tiles: np.ndarray, quality: int) -> list[str]:
    sheets = []
    for start in range(0, len(tiles), SIDE * SIDE):
        part = tiles[start : start + SIDE * SIDE]
        height = -(-len(part) // SIDE)
        sheet = np.full((height * SIDE, TILE, TILE, 3), 255, np.uint8)
        sheet[: len(part)] = part
        grid = sheet.reshape(height, SIDE, TILE, TILE, 3).swapaxes(1, 2).reshape(height * TILE, SIDE * TILE, 3)
        sheets.append(data_uri(Image.fromarray(grid), quality))
    return sheets
