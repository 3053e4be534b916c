"""Shapes on a map, as a file has them: a GeoPackage, a Shapefile or GeoJSON."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projects.Tiles.geo import WGS84, geo_package
from revisit.data.images.image_bytes import first_bytes
from revisit.errors import expect, translated
from revisit.files import read_json

_SQLITE, _SHAPEFILE = b"SQLite format 3\0", b"\0\0\x27\n"
_CRS = re.compile(r"(?:^|:)(EPSG|OGC):(?:[\d.]*:)?(\w+)$")  # as GeoJSON names one


class Shapes(NamedTuple):
    """N of them, some of which may be None or no polygons."""

    outlines: np.ndarray  # (N,) shapely's
    crs: str
    columns: dict[str, Sequence[Any]]  # by name, N values of each


def read_shapes(file: Path) -> Shapes:
    """All of a file whose suffix says its format: .gpkg, of one layer, .shp, .geojson or .json.

    Raises:
        UserError: another format, more than one layer, no CRS, or a damaged file.
    """
    suffix = file.suffix.lower()
    expect(suffix in _READERS, f"{file}: expected shapes on a map in a file of {', '.join(_READERS)}")
    expect(file.is_file(), f"{file}: no such file: expected shapes on a map")
    with translated(f"reading {file}", content=True):
        shapes = _READERS[suffix](file)
    expect(shapes.crs, f"{file} says no CRS: expected one, such as set by ogr2ogr -a_srs EPSG:32633")
    return shapes


def _read_by_gdal(file: Path) -> Shapes:
    # GDAL goes by what a file begins with, and would open others at the places that some of its formats name.
    expect(first_bytes(file).startswith((_SQLITE, _SHAPEFILE)), f"{file} is neither GeoPackage nor Shapefile")
    pyogrio, path = geo_package("pyogrio"), file.absolute()
    layers = [name for name, kind in pyogrio.list_layers(path) if kind]
    expect(len(layers) == 1, f"{file} has the layers {', '.join(layers) or 'none'}: expected one, saved alone")
    about, _, outlines, values = pyogrio.raw.read(path, layer=layers[0], force_2d=True)
    columns = dict(zip(about["fields"].tolist(), values, strict=True))
    return Shapes(geo_package("shapely").from_wkb(outlines), about["crs"] or "", columns)


def _read_geojson(file: Path) -> Shapes:
    """Not by GDAL, which takes some files that look so for commands."""
    shapely, content = geo_package("shapely"), read_json(file)
    expect(isinstance(content, dict) and "features" in content, f"{file} is no FeatureCollection of GeoJSON")
    features = content["features"]
    geometries = [feature["geometry"] for feature in features]
    outlines = [None if each is None else shapely.force_2d(shapely.geometry.shape(each)) for each in geometries]
    rows = [feature.get("properties") or {} for feature in features]
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    return Shapes(np.array(outlines, object), _crs_of_geojson(content), columns)


def _crs_of_geojson(content: Mapping[str, Any]) -> str:
    """What a member of the format's first version says, else WGS84; "" of what it does not know."""
    if content.get("crs") is None:
        return WGS84
    named = _CRS.search(content["crs"]["properties"]["name"])
    return f"{named[1]}:{named[2]}" if named else ""


_READERS: dict[str, Callable[[Path], Shapes]] = {
    ".gpkg": _read_by_gdal,
    ".shp": _read_by_gdal,
    ".geojson": _read_geojson,
    ".json": _read_geojson,
}
