"""Images of any kind as tiled TIFFs, a part at a time, of which windows are read fast."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from projects.Pixels.channel_files import expect_one_file_each
from projects.Pixels.samples import Samples, Scan
from projects.Pixels.tiff import MASK, NODATA
from projects.Pixels.write_tiff import check_tifffile, tiff_layout, tifffile
from projects.Tiles.geo import tags_with_place
from projects.Tiles.window_files import look_at, read_window
from revisit.boxes.coco_files import folder_of
from revisit.data.images.image_bytes import Size
from revisit.data.sources.catalog import get_records
from revisit.data.sources.file_names import expect_file_names
from revisit.errors import expect
from revisit.files import written_whole
from revisit.progress import progress

TILE = 512  # px
_PART = 2**26  # bytes of samples that are read at a time, if a row of tiles may be cut

logger = logging.getLogger(__name__)


def convert(data: str, folder: Path) -> str:
    """Write each image of a data set, or the image of one file, below ``folder`` as a TIFF of its name; those that are
    there stay, but of a file that has been written since. Returns in words what there is.

    Raises:
        UserError: an image cannot be read by windows, or has a file for each channel.
    """
    check_tifffile()
    records = [{"file_name": data}] if os.path.isfile(data) else get_records(data)
    expect_file_names(records, data)
    expect_one_file_each(records, data, "name its folder, and each file is converted")
    files = [os.path.abspath(record["file_name"]) for record in records]
    root = folder_of(records, data)
    targets = [(folder / os.path.relpath(file, root)).with_suffix(".tif") for file in files]
    expect(len({*targets}) == len(targets), f"{data}: names of images differ in their suffixes alone")
    expect({*map(str, targets)}.isdisjoint(files), f"{folder} has the images themselves: expected another --output")
    for file, target in zip(files, targets, strict=True):
        is_there = target.exists() and target.stat().st_mtime >= os.stat(file).st_mtime
        if not is_there:
            target.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(target) as temporary:
                write_tiled(file, temporary)
    return f"{len(files):,} tiled TIFFs in {folder}"


def write_tiled(file: str, target: Path) -> None:
    """Write the image of a file as a BigTIFF in tiles of TILE px, deflated. Pixels without data stay so, by the mark
    that a TIFF has for them, or by a mask."""
    scan = look_at(file)
    first = read_window(file, (0, 0, 1, 1))
    tags = tags_with_place(file)
    masked = False

    def values_of(samples: Samples) -> np.ndarray:
        nonlocal masked
        masked |= samples.marked is not None
        return tiff_layout(samples)[0]

    values, layout = tiff_layout(first)
    own = [tag for tag in layout.pop("extratags") if tag[0] not in {kept[0] for kept in tags}]
    how = {"shape": (*scan[:2], *values.shape[2:]), "dtype": values.dtype, "extratags": [*own, *tags], **layout}
    with tifffile.TiffWriter(target, bigtiff=True) as writer:
        _write(writer, _parts(file, scan, values[0, 0].nbytes, values_of), **how)
        if masked and NODATA not in {tag[0] for tag in tags}:
            parts = _parts(file, scan, values[0, 0].nbytes, _unmarked)
            _write(writer, parts, shape=scan[:2], dtype=bool, photometric="minisblack", subfiletype=MASK)


def write_map(target: Path, tiles: Iterator[np.ndarray], size: Size, dtype: type, tags: list[tuple]) -> None:
    """Write a map of one value a pixel as write_tiled does an image.

    Args:
        tiles: of TILE px, row by row; those at the right and the lower border may be smaller.
        size: height and width, px.
        tags: as tifffile writes them.
    """
    with tifffile.TiffWriter(target, bigtiff=True) as writer:
        _write(writer, map(_filled, tiles), shape=size, dtype=dtype, photometric="minisblack", extratags=tags)


def _unmarked(samples: Samples) -> np.ndarray:
    """What is transparent stays so by its own sample."""
    return np.ones(samples.values.shape[:2], bool) if samples.marked is None else ~samples.marked


def _write(writer: "tifffile.TiffWriter", tiles: Iterator[np.ndarray], **how: Any) -> None:
    writer.write(tiles, tile=(TILE, TILE), compression="zlib", metadata=None, software=False, **how)


def _parts(file: str, scan: Scan, of_pixel: int, values_of: Callable[[Samples], np.ndarray]) -> Iterator[np.ndarray]:
    """Tiles of an image, row by row, of which several are read at once: a strip is decoded for each of these parts."""
    across = max(1, _PART // (TILE * TILE * of_pixel)) * TILE
    tops = range(0, scan.height, TILE)
    for top in progress(f"converting {os.path.basename(file)}", "row of tiles", tops):
        for left in range(0, scan.width, across):
            window = (left, top, min(left + across, scan.width), min(top + TILE, scan.height))
            part = values_of(read_window(file, window))
            for start in range(0, part.shape[1], TILE):
                yield _filled(part[:, start : start + TILE])


def _filled(part: np.ndarray) -> np.ndarray:
    """A whole tile, with 0 beyond the image's border."""
    tile = np.zeros((TILE, TILE, *part.shape[2:]), part.dtype)
    tile[: part.shape[0], : part.shape[1]] = part
    return tile
