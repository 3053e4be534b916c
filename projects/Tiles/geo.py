"""Where pixels lie on the earth, and what shape objects have there.

Columns and rows count the *edges* of pixels, as COCO's boxes do: (0, 0) is the outer corner of the first one. x is east
or the longitude, whatever the order of a CRS's axes.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as coco_mask

from projects.Pixels.tiff import OF_PLACE, opened, tags_as_written, tags_to_keep
from projects.Tiles.cutting import ColumnRuns
from revisit.data.images.image_bytes import UnreadableImageError, first_bytes
from revisit.data.images.opening import JPEG_MAGIC, PNG_MAGIC, TIFF_MAGICS
from revisit.errors import UserError, first_line
from revisit.plugins import require_package

WGS84 = "OGC:CRS84"  # longitude before latitude
JP2_MAGICS = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
# What GDAL opens a file by, for what it begins with: of these no file names another one for its pixels, as VRT does.
_DRIVERS = {TIFF_MAGICS: "GTiff", JP2_MAGICS: "JP2OpenJPEG", JPEG_MAGIC: "JPEG", PNG_MAGIC: "PNG"}
_NOTHING_ELSEWHERE = {"CPL_VSIL_CURL_ALLOWED_FILENAME": "none", "GDAL_DISABLE_READDIR_ON_OPEN": "TRUE"}


class Place(NamedTuple):
    """Of an image: x = a column + b row + c, y = d column + e row + f, in the units of its CRS."""

    crs: str  # EPSG:number, else WKT
    affine: tuple[float, ...]  # a, b, c, d, e and f

    def on_map(self, points: np.ndarray) -> np.ndarray:
        """(N, 2) columns and rows -> x and y."""
        a, b, c, d, e, f = self.affine
        return points @ np.array([[a, d], [b, e]]) + (c, f)

    def in_pixels(self, points: np.ndarray) -> np.ndarray:
        """(N, 2) x and y -> columns and rows."""
        a, b, c, d, e, f = self.affine
        return np.linalg.solve([[a, b], [d, e]], (points - (c, f)).T).T


def geo_package(name: str) -> ModuleType:
    """A package of the extra geo. Raises UserError where it is not installed."""
    return require_package(name, f"the package {name} is not installed: pip install 'revisit-detectron2[geo]'")


@contextmanager
def opened_raster(file_name: str, **environment: str) -> Iterator[Any]:
    """rasterio's data set of a file on this machine: a TIFF, JPEG 2000, JPEG or PNG. GDAL asks no network, whatever the
    file says.

    Raises:
        UserError: rasterio is not installed.
        UnreadableImageError: no such file, or a damaged one, also in the block.
    """
    rasterio = geo_package("rasterio")
    path, head = Path(os.path.abspath(file_name)), first_bytes(file_name)
    driver = next((driver for magics, driver in _DRIVERS.items() if head.startswith(magics)), "")
    if not driver or str(path).startswith("/vsi"):
        raise UnreadableImageError("no TIFF, JPEG 2000, JPEG or PNG file")
    with rasterio.Env(**_NOTHING_ELSEWHERE | environment), warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        try:
            with rasterio.open(path, driver=driver) as raster:
                yield raster
        except rasterio.errors.RasterioIOError as error:
            raise UnreadableImageError(f"GDAL cannot read it: {first_line(error.__cause__ or error)}") from error


def tags_with_place(file_name: str) -> list[tuple]:
    """``tags_to_keep``, and where an image lies, too, that says so in another way than a GeoTIFF: as JPEG 2000, or in a
    file next to it. That takes rasterio."""
    tags = tags_to_keep(file_name)
    says_place = any(tag[0] in OF_PLACE for tag in tags) or find_spec("rasterio") is None
    place = None if says_place else place_of(file_name)
    return [*tags, *_tags_of(place)] if place else tags


def _tags_of(place: Place) -> list[tuple]:
    """Of a GeoTIFF that lies there."""
    rasterio = geo_package("rasterio")
    form = {"driver": "GTiff", "width": 1, "height": 1, "count": 1, "dtype": "uint8"}
    with rasterio.MemoryFile() as memory:
        with memory.open(**form, crs=place.crs, transform=rasterio.Affine(*place.affine)):
            pass
        with opened(memory.read()) as file:
            return tags_as_written(file.pages[0], OF_PLACE)


def place_of(file_name: str) -> Place | None:
    """By what is in a file, such as the tags of a GeoTIFF, or next to it, such as .aux.xml. None of one without
    coordinates, or without a CRS, and of what is no raster. Raises UserError where rasterio is not installed.

    Where a file gives the place of a pixel's centre (PixelIsPoint, world files), half a pixel is taken off.
    """
    try:
        with opened_raster(file_name) as raster:
            if raster.crs is None or raster.transform.is_identity:
                return None
            return Place(raster.crs.to_string(), tuple(raster.transform)[:6])
    except UnreadableImageError:
        return None


def reprojected(shapes: np.ndarray, crs: str, other: str) -> np.ndarray:
    """(N,) shapes of shapely's in another CRS; points that it does not have are infinite.

    Raises:
        UserError: nothing leads from one to the other.
    """
    if crs == other:
        return shapes
    pyproj = geo_package("pyproj")
    try:
        move = pyproj.Transformer.from_crs(crs, other, always_xy=True)
    except pyproj.exceptions.ProjError as error:
        raise UserError(f"no coordinates of {other} for those of {crs[:60]}: {first_line(error)}") from error
    return geo_package("shapely").transform(shapes, lambda points: np.column_stack(move.transform(*points.T)))


@lru_cache(maxsize=64)
def is_on_earth(crs: str) -> bool:
    """Whether a CRS has longitudes and latitudes: not one of a hall, of a drone's own coordinates, or of Mars."""
    try:
        reprojected(np.array([]), crs, WGS84)
    except UserError:
        return False
    return True


def shape_of(found: Mapping[str, Any]) -> Any:
    """The shape in px of an object in COCO's result format: of its mask in run lengths, along the edges of pixels, with
    its holes; else of its ``bbox``."""
    shapely = geo_package("shapely")
    if "segmentation" in found:
        return _outline(found["segmentation"])
    left, top, width, height = found["bbox"]
    return shapely.box(left, top, left + width, top + height)


def _outline(mask: Mapping[str, Any]) -> Any:
    """A MultiPolygon of run lengths, of which the rows and columns that have pixels are drawn."""
    shapely, features = geo_package("shapely"), geo_package("rasterio.features")
    runs = ColumnRuns.of(mask)
    if not len(runs.columns):
        return shapely.MultiPolygon()
    bounds = runs.bounds.astype(int)
    pixels = np.ascontiguousarray(coco_mask.decode(runs.mask_in(bounds)["segmentation"]))
    outlines = features.shapes(pixels, mask=pixels > 0, transform=(1, 0, bounds[0], 0, 1, bounds[1]))
    return shapely.MultiPolygon([shapely.geometry.shape(polygon) for polygon, _ in outlines])
