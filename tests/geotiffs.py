"""TIFFs with coordinates, by their tags."""

from pathlib import Path

import numpy as np
import tifffile

UTM = "EPSG:32633"
CORNER, SIDE = (380_000.0, 5_820_000.0), 0.5  # x and y of the first pixel's outer corner, and m a pixel


def geo_keys(is_point=False, code=32633) -> tuple:
    """The tag of a projected CRS, by its number, whose raster is of areas or of points."""
    keys = [(1024, 0, 1, 1), (1025, 0, 1, 2 if is_point else 1), (3072, 0, 1, code)]
    values = (1, 1, 0, len(keys), *(value for key in keys for value in key))
    return (34735, "H", len(values), values, True)


def tie(column=0.0, row=0.0, corner=CORNER) -> list[tuple]:
    """Tags that say where a place of the raster lies, and the size of a pixel."""
    return [(33550, "d", 3, (SIDE, SIDE, 0.0), True), (33922, "d", 6, (column, row, 0.0, *corner, 0.0), True)]


def write_tiff(path: Path, tags: list[tuple], size: tuple[int, int] = (40, 60)) -> str:
    """A black image of (height, width) px; returns its name."""
    tifffile.imwrite(path, np.zeros(size, np.uint8), metadata=None, extratags=tags)
    return str(path)
