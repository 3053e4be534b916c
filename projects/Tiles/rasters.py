"""Windows of rasters that GDAL reads, such as JPEG 2000."""

import math
import warnings
from typing import Any

import numpy as np

from projects.Pixels.samples import Samples, Scan, with_missing
from projects.Tiles.geo import geo_package, opened_raster
from revisit.data.images.image_bytes import DeepImageError, UnreadableImageError, Window
from revisit.data.images.opening import MAX_MEMORY, check_pixel_count
from revisit.data.images.pixel_format import COLOURS

_ALONE = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR", "GDAL_PAM_ENABLED": "NO"}  # no other file has a say in pixels
_COPIES = 3  # of the samples, while they are decoded


def raster_head(file_name: str) -> Scan:
    """Height and width in px, and whether some pixels may have no data. Raises as ``read_raster``."""
    with opened_raster(file_name, **_ALONE) as raster:
        _check(raster)
        flags = {flag.name for flags in raster.mask_flag_enums for flag in flags}
        return Scan(raster.height, raster.width, flags != {"all_valid"})


def read_raster(file_name: str, window: Window) -> Samples:
    """As ``read_tiff`` of a window: colours, transparency, names and marks of no data are those that GDAL finds.

    Raises:
        UserError: rasterio is not installed.
        DeepImageError: a palette.
        UnreadableImageError: too large, damaged, or of another format.
    """
    left, top, right, bottom = window
    with opened_raster(file_name, **_ALONE) as raster:
        _check(raster)
        check_pixel_count(bottom - top, right - left, 4 + _COPIES * _bytes_of_pixel(raster))
        area = geo_package("rasterio.windows").Window(left, top, right - left, bottom - top)
        values = np.moveaxis(raster.read(window=area), 0, -1)
        kinds = [kind.name for kind in raster.colorinterp]
        names = raster.descriptions
        taken = [place for place, kind in enumerate(kinds) if kind != "alpha"]
        marked = _marked(raster, taken, area)
    samples = Samples(
        values[..., taken],
        names=tuple(names[place] for place in taken) if all(names) else (),
        is_colour=tuple(kinds[: len(COLOURS)]) == COLOURS,
        alpha=values[..., kinds.index("alpha")] if "alpha" in kinds else None,
    )
    return with_missing(samples, marked)


def _marked(raster: Any, bands: list[int], area: Any) -> np.ndarray | None:
    """(h, w) bool, where none of the bands has data. A dataset_mask would be of transparency, where there is some."""
    if any(flag.name == "alpha" for flag in raster.mask_flag_enums[0]):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", geo_package("rasterio.errors").NodataShadowWarning)  # both are read
        masks = raster.read_masks([band + 1 for band in bands], window=area)
    return (masks == 0).all(axis=0)


def _check(raster: Any) -> None:
    """Before anything is decoded: a block has a meaning and a size that can be read."""
    if "palette" in {kind.name for kind in raster.colorinterp}:
        raise DeepImageError("a raster with a palette: expected its colours, such as by gdal_translate -expand rgb")
    rows, columns = map(max, zip(*raster.block_shapes, strict=True))
    if math.prod((rows, columns, _COPIES, _bytes_of_pixel(raster))) > MAX_MEMORY:
        raise UnreadableImageError(f"blocks of {columns} x {rows} px: save it in tiles, such as by gdal_translate")


def _bytes_of_pixel(raster: Any) -> int:
    return sum(np.dtype(kind).itemsize for kind in raster.dtypes)
