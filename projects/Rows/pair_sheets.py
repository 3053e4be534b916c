"""Sheets of pairs of images: around the threshold of near-duplicates, and of leaks."""

from pathlib import Path

import numpy as np

from projects.Pictures.tiles import framed, gallery, save_sheet
from projects.Rows.grouping import Grouped, Pairs, Rule
from projects.Rows.row_table import RowTable
from projects.Rows.thumbnails import thumbnails

TILE, COLUMNS = 120, 4  # px of an image, and pairs in a row of the sheet
MOST = 40  # leaks that are drawn
ALIKE, OTHER = (0, 140, 60), (200, 40, 40)  # RGB


def draw_pairs(path: Path, table: RowTable, grouping: Grouped, rule: Rule) -> None:
    """The least similar near-duplicates in green, then the most similar others in red."""
    tiles, captions = [], []
    for pairs, color in ((grouping.alike, ALIKE), (grouping.others, OTHER)):
        tiles += [framed(tile, color, 2 * TILE) for tile in _side_by_side(table, table, pairs)]
        captions += _captions(pairs)
    subtitle = table.pixels.caption(
        f"green: one group, the least similar pairs; red: not, the most similar ones; the threshold is {rule}"
    )
    save_sheet(path, gallery(tiles, captions, COLUMNS), title="Pairs around the threshold", subtitle=subtitle)


def draw_leaks(path: Path, training: RowTable, test: RowTable, pairs: Pairs) -> None:
    """The most similar ones, each test image next to its training image."""
    shown = pairs.of(slice(MOST))
    rows = gallery(_side_by_side(test, training, shown), _captions(shown), COLUMNS)
    save_sheet(
        path,
        rows,
        title="Test images (left) that nearly equal a training image (right)",
        subtitle=training.pixels.caption(f"{len(shown.places)} of {len(pairs.places)}"),
    )


def _side_by_side(left: RowTable, right: RowTable, pairs: Pairs) -> list[np.ndarray]:
    """(TILE, 2 TILE, 3) of each pair."""
    sides = [thumbnails(table.of(places), TILE) for table, places in zip((left, right), pairs.places.T, strict=True)]
    return list(np.concatenate(sides, axis=2))


def _captions(pairs: Pairs) -> list[str]:
    values = zip(pairs.cosines.tolist(), pairs.differing.tolist(), strict=True)
    return [f"cosine {cosine:.3f}, {bits} bits differ" for cosine, bits in values]
