"""What a detector has found on maps, as files that QGIS, GDAL and web maps open."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projects.Predict.prediction_files import GEOJSON, GEOPACKAGE
from projects.Tiles.geo import WGS84, Place, geo_package, is_on_earth, place_of, reprojected, shape_of
from revisit.errors import UserError, expect, printable
from revisit.files import written_whole

LAYER = "predictions"
RASTERS = (".tif", ".tiff", ".jp2")
COLUMNS = ("file", "class", "score", "area")
_AT_ONCE = 2**12  # shapes whose texts are in memory
_DATE = "1970-01-01T00:00:00.000Z"  # of a layer's last change: the same objects have the same bytes


class _Layer(NamedTuple):
    """Objects, each a row."""

    shapes: np.ndarray  # (N,) shapely's, in the files' own CRS
    on_earth: np.ndarray  # (N,) in WGS84
    columns: list[np.ndarray]  # (N,) each of COLUMNS


def are_rasters(files: Sequence[str]) -> bool:
    """Whether some of these are of the kinds that maps usually are."""
    return any(file.lower().endswith(RASTERS) for file in files)


def write_map(folder: Path, images: Sequence[Mapping[str, Any]], class_names: Sequence[str]) -> str:
    """Write predictions.gpkg, a layer in the CRS of the images' files, and predictions.geojson, in WGS84, of images
    with coordinates; what an earlier call has written is removed before.

    Columns are the name of the image's ``file``, the ``class``, the ``score``, and the ``area`` in square metres on the
    ellipsoid. Where files have several CRSs, the layer that can have one only is not written.

    Args:
        images: with ``file_name`` and ``objects`` in COCO's result format: ``bbox``, ``score``, ``category_id``, which
            counts ``class_names`` from 1, and perhaps ``segmentation`` in run lengths.

    Returns: a line that says what was written, or why nothing was.

    Raises:
        UserError: coordinates that are not on the earth.
    """
    for name in (GEOPACKAGE, GEOJSON):
        (folder / name).unlink(missing_ok=True)
    try:
        for package in ("rasterio", "pyproj", "pyogrio", "shapely"):
            geo_package(package)
    except UserError as error:
        return f"no map: {error}"
    places = [place_of(str(image["file_name"])) for image in images]
    placed = [(image, place) for image, place in zip(images, places, strict=True) if place and is_on_earth(place.crs)]
    if not placed:
        return f"no map: no image has coordinates with a CRS{' of the earth' * any(places)}"
    layer = _layer(placed, class_names)
    _write_geojson(folder / GEOJSON, layer)
    written = f"{folder / GEOJSON}: {len(layer.shapes):,} objects of {len(placed):,} of {len(images):,} images"
    first, crs = placed[0][0]["file_name"], placed[0][1].crs
    for image, (other, _) in placed:
        if other != crs:
            mixed = f"{first} has {crs[:60]}, and {image['file_name']} {other[:60]}"
            return f"{written}; no {GEOPACKAGE}, for a layer has one CRS: {mixed}"
    _write_geopackage(folder / GEOPACKAGE, layer, crs)
    return f"{written}; in their own CRS, {crs[:60]}, in {GEOPACKAGE}"


def _layer(placed: Sequence[tuple[Mapping[str, Any], Place]], class_names: Sequence[str]) -> _Layer:
    """Of objects in the order of images; outer rings run counter-clockwise, as RFC 7946 has it."""
    shapely = geo_package("shapely")
    shapes, on_earth = [], []
    for image, place in placed:
        of_image = np.array([shape_of(found) for found in image["objects"]], object)
        shapes.append(shapely.transform(of_image, place.on_map))
        on_earth.append(reprojected(shapes[-1], place.crs, WGS84))
    shapes, on_earth = (shapely.orient_polygons(np.concatenate(each)) for each in (shapes, on_earth))
    is_there = np.isfinite(shapely.get_coordinates(on_earth)).all()
    first = placed[0][0]["file_name"]
    expect(is_there, f"coordinates of {first} or another image are on no earth: expected those that their CRS has")
    rows = [(image["file_name"], found) for image, _ in placed for found in image["objects"]]
    files = np.array([printable(str(file)) for file, _ in rows], object)
    classes = np.array([class_names[found["category_id"] - 1] for _, found in rows], object)
    scores = np.array([found["score"] for _, found in rows], float)
    ellipsoid = geo_package("pyproj").CRS(WGS84).get_geod()
    areas = np.array([abs(ellipsoid.geometry_area_perimeter(shape)[0]) for shape in on_earth], float)
    return _Layer(shapes, on_earth, [files, classes, scores, areas])


def _write_geojson(path: Path, layer: _Layer) -> None:
    """A feature a line."""
    as_text, shapes = geo_package("shapely").to_geojson, layer.on_earth
    parts = (as_text(shapes[start : start + _AT_ONCE]) for start in range(0, len(shapes), _AT_ONCE))
    with written_whole(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write('{"type": "FeatureCollection", "features": [')
        between = "\n"
        for geometry, *row in zip(chain.from_iterable(parts), *layer.columns, strict=True):
            properties = json.dumps(dict(zip(COLUMNS, row, strict=True)))
            file.write(f'{between}{{"type": "Feature", "properties": {properties}, "geometry": {geometry}}}')
            between = ",\n"
        file.write("\n]}\n")


def _write_geopackage(path: Path, layer: _Layer, crs: str) -> None:
    """By GDAL, in memory first: it takes no name that ends otherwise."""
    shapely, pyogrio, file = geo_package("shapely"), geo_package("pyogrio"), io.BytesIO()
    kinds = {int(kind) for kind in np.unique(shapely.get_type_id(layer.shapes))}
    has_masks = int(shapely.GeometryType.MULTIPOLYGON) in kinds
    with _dated(pyogrio):
        pyogrio.raw.write(
            file,
            shapely.to_wkb(layer.shapes),
            layer.columns,
            list(COLUMNS),
            layer=LAYER,
            driver="GPKG",
            geometry_type="MultiPolygon" if has_masks else "Polygon",
            promote_to_multi=has_masks,
            crs=crs,
        )
    with written_whole(path) as temporary:
        temporary.write_bytes(file.getbuffer())


@contextmanager
def _dated(pyogrio: Any) -> Iterator[None]:
    pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": _DATE})
    try:
        yield
    finally:
        pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": None})
