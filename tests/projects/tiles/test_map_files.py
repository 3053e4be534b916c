"""Maps of predictions, opened by GDAL's library as QGIS has it, against affines by hand."""

import json
import sys

import numpy as np
import pytest
from geotiffs import CORNER, SIDE, UTM, geo_keys, tie, write_tiff
from pycocotools import mask as coco_mask
from trees import refused

from projects.Tiles.map_files import GEOJSON, GEOPACKAGE, write_map

pyogrio = pytest.importorskip("pyogrio")
pyproj = pytest.importorskip("pyproj")
shapely = pytest.importorskip("shapely")

BOXES = [[0, 0, 60, 40], [10.5, 4.25, 8, 2]]  # xywh


def found(file_name, boxes=BOXES, **further) -> dict:
    objects = [{"bbox": box, "score": 0.9 - n / 8, "category_id": 2 - n, **further} for n, box in enumerate(boxes)]
    return {"file_name": str(file_name), "height": 40, "width": 60, "objects": objects}


def by_hand(box) -> tuple:
    """The bounds on the map of a box in px: edges, and y goes up."""
    left, top, width, height = box
    (x, y), (right, bottom) = CORNER, (left + width, top + height)
    return (x + SIDE * left, y - SIDE * bottom, x + SIDE * right, y - SIDE * top)


@pytest.fixture
def image(tmp_path):
    return write_tiff(tmp_path / "a.tif", [*tie(), geo_keys()])


def test_a_geopackage_has_boxes_by_their_edges_in_the_crs_of_the_file(image, tmp_path):
    line = write_map(tmp_path, [found(image)], ["oak", "fir"])
    assert "2 objects of 1 of 1 images" in line and UTM in line and "\n" not in line
    assert pyogrio.list_layers(tmp_path / GEOPACKAGE).tolist() == [["predictions", "Polygon"]]
    meta, _, shapes, (files, classes, scores, areas) = pyogrio.raw.read(tmp_path / GEOPACKAGE)
    assert meta["crs"] == UTM and meta["fields"].tolist() == ["file", "class", "score", "area"]
    np.testing.assert_allclose(shapely.bounds(shapely.from_wkb(shapes)), [*map(by_hand, BOXES)], atol=1e-9, rtol=0)
    assert files.tolist() == [image] * 2 and classes.tolist() == ["fir", "oak"] and scores.tolist() == [0.9, 0.775]
    np.testing.assert_allclose(areas, [600, 4], rtol=1e-3)  # m^2, which UTM shrinks by 8 in 10,000 at its meridian


def test_geojson_is_rfc_7946(image, tmp_path):
    write_map(tmp_path, [found(image)], ["oak", "fir"])
    content = json.loads((tmp_path / GEOJSON).read_text())
    assert content.keys() == {"type", "features"} and content["type"] == "FeatureCollection"
    to_earth = pyproj.Transformer.from_crs(UTM, "EPSG:4326").transform  # latitude first, as EPSG has it
    for feature, box in zip(content["features"], BOXES, strict=True):
        (ring,) = feature["geometry"]["coordinates"]
        left, bottom, right, top = by_hand(box)
        corners = {(x, y) for x in (left, right) for y in (bottom, top)}
        expected = sorted(to_earth(*corner)[::-1] for corner in corners)
        np.testing.assert_allclose(sorted(map(tuple, ring[1:])), expected, atol=1e-9, rtol=0)
        assert ring[0] == ring[-1] and len(ring) == 5 and shapely.LinearRing(ring).is_ccw
        assert 10 < ring[0][0] < 16 and 50 < ring[0][1] < 54
    assert content["features"][0]["properties"] | {"area": 0} == {
        "file": image,
        "class": "fir",
        "score": 0.9,
        "area": 0,
    }
    assert pyogrio.read_info(tmp_path / GEOJSON)["crs"] == "EPSG:4326"


def test_outlines_of_masks_are_on_the_map_with_their_holes(image, tmp_path):
    mask = np.zeros((40, 60), np.uint8)
    mask[5:20, 10:30] = 1
    mask[8:10, 12:15] = 0
    runs = coco_mask.encode(np.asfortranarray(mask))
    write_map(tmp_path, [found(image, segmentation=runs)], ["oak", "fir"])
    meta, _, shapes, (*_, areas) = pyogrio.raw.read(tmp_path / GEOPACKAGE)
    assert meta["geometry_type"] == "MultiPolygon"
    boxes = [shapely.box(*by_hand(box)) for box in ([10, 5, 20, 15], [12, 8, 3, 2])]
    assert shapely.from_wkb(shapes[0]).equals(boxes[0] - boxes[1])
    assert areas[0] == pytest.approx((300 - 6) * SIDE**2, rel=1e-3)
    (outer, hole), *_ = json.loads((tmp_path / GEOJSON).read_text())["features"][0]["geometry"]["coordinates"]
    assert shapely.LinearRing(outer).is_ccw and not shapely.LinearRing(hole).is_ccw


def test_the_same_objects_have_the_same_bytes(image, tmp_path):
    written = []
    for _ in range(2):
        write_map(tmp_path, [found(image)], ["oak", "fir"])
        written.append([(tmp_path / name).read_bytes() for name in (GEOPACKAGE, GEOJSON)])
        assert b"1970-01-01T00:00:00.000Z" in written[-1][0]
    assert written[0] == written[1] and not list(tmp_path.glob("*.tmp"))


def test_images_without_coordinates_are_on_no_map(image, tmp_path):
    plain = write_tiff(tmp_path / "plain.tif", [])
    line = write_map(tmp_path, [found(plain), found(image), found(tmp_path / "film.mp4#1")], ["oak", "fir"])
    assert "2 objects of 1 of 3 images" in line and (tmp_path / GEOPACKAGE).is_file()
    assert write_map(tmp_path, [found(plain)], ["oak", "fir"]) == "no map: no image has coordinates with a CRS"
    assert not (tmp_path / GEOPACKAGE).exists() and not (tmp_path / GEOJSON).exists()


def test_without_the_extra_a_line_says_so(image, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyogrio", None)
    line = write_map(tmp_path, [found(image)], ["oak", "fir"])
    assert line == "no map: the package pyogrio is not installed: pip install 'revisit-detectron2[geo]'"
    assert not (tmp_path / GEOJSON).exists()


def test_nothing_found_is_a_map_of_nothing(image, tmp_path):
    assert "0 objects of 1 of 1 images" in write_map(tmp_path, [found(image, [])], ["oak", "fir"])
    assert pyogrio.read_info(tmp_path / GEOPACKAGE)["features"] == 0
    assert json.loads((tmp_path / GEOJSON).read_text())["features"] == []


def test_coordinates_that_are_on_no_earth_are_refused(tmp_path):
    image = write_tiff(tmp_path / "a.tif", [*tie(corner=(1e12, 1e12)), geo_keys()])
    refused("on no earth", write_map, tmp_path, [found(image)], ["oak", "fir"])
    assert not (tmp_path / GEOJSON).exists()


def test_an_image_in_coordinates_of_its_own_takes_the_map_of_no_other(image, tmp_path):
    rasterio = pytest.importorskip("rasterio")
    local, form = tmp_path / "local.tif", {"driver": "GTiff", "width": 60, "height": 40, "count": 1, "dtype": "uint8"}
    place = {"crs": 'LOCAL_CS["a hall",UNIT["metre",1]]', "transform": rasterio.Affine(1, 0, 9, 0, -1, 9)}
    with rasterio.open(local, "w", **form, **place) as raster:
        raster.write(np.zeros((1, 40, 60), np.uint8))
    line = write_map(tmp_path, [found(local), found(image)], ["oak", "fir"])
    assert f"2 objects of 1 of 2 images; in their own CRS, {UTM}" in line
    line = write_map(tmp_path, [found(local)], ["oak", "fir"])
    assert line == "no map: no image has coordinates with a CRS of the earth"


def test_a_layer_has_one_crs_and_wgs84_takes_all(image, tmp_path):
    other = write_tiff(tmp_path / "b.tif", [*tie(), geo_keys(code=32632)])
    line = write_map(tmp_path, [found(image), found(other)], ["oak", "fir"])
    assert f"{image} has {UTM}" in line and f"{other} EPSG:32632" in line and "\n" not in line
    assert not (tmp_path / GEOPACKAGE).exists()
    features = json.loads((tmp_path / GEOJSON).read_text())["features"]
    east = [feature["geometry"]["coordinates"][0][0][0] for feature in features[::2]]
    assert len(features) == 4 and east[0] - east[1] == pytest.approx(6, abs=1e-6)  # degrees between zones
