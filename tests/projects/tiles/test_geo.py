"""Coordinates of pixels' edges, by what files say, and what is written of them, against affines by hand."""

import sys

import numpy as np
import pytest
from geotiffs import CORNER, SIDE, UTM, geo_keys, tie, write_tiff
from pycocotools import mask as coco_mask
from trees import refused

from projects.Tiles.converting import write_tiled
from projects.Tiles.geo import WGS84, Place, opened_raster, place_of, reprojected, shape_of
from revisit.data.images.image_bytes import UnreadableImageError

rasterio = pytest.importorskip("rasterio")
shapely = pytest.importorskip("shapely")

NORTH_UP = Place(UTM, (SIDE, 0.0, CORNER[0], 0.0, -SIDE, CORNER[1]))


@pytest.mark.parametrize("is_point, shift", [(False, 0.0), (True, 0.5)])
def test_a_geotiff_ties_edges_of_pixels_or_centres(is_point, shift, tmp_path):
    place = place_of(write_tiff(tmp_path / "a.tif", [*tie(), geo_keys(is_point)]))
    assert place.crs == UTM
    corner = (CORNER[0] - shift * SIDE, CORNER[1] + shift * SIDE)
    np.testing.assert_allclose(
        place.on_map(np.array([[0.0, 0.0], [60, 40]])), [corner, (corner[0] + 30, corner[1] - 20)]
    )


def test_a_geotiff_ties_any_pixel(tmp_path):
    place = place_of(write_tiff(tmp_path / "a.tif", [*tie(10, 20), geo_keys()]))
    np.testing.assert_allclose(place.on_map(np.array([[10.0, 20.0]])), [CORNER])


def test_a_geotiff_may_be_turned(tmp_path):
    a, b, c, d, e, f = 0.3, 0.4, CORNER[0], 0.4, -0.3, CORNER[1]
    matrix = (a, b, 0.0, c, d, e, 0.0, f, *[0.0] * 7, 1.0)
    place = place_of(write_tiff(tmp_path / "a.tif", [(34264, "d", 16, matrix, True), geo_keys()]))
    assert place == Place(UTM, (a, b, c, d, e, f))
    columns, rows = np.array([7.25, 59]), np.array([3.5, 11])
    by_hand = np.stack([a * columns + b * rows + c, d * columns + e * rows + f], axis=1)
    np.testing.assert_allclose(place.on_map(np.stack([columns, rows], axis=1)), by_hand, atol=1e-9, rtol=0)
    np.testing.assert_allclose(place.in_pixels(by_hand), np.stack([columns, rows], axis=1), atol=1e-6)


def test_what_has_no_coordinates_or_no_crs_has_no_place(tmp_path):
    files = [write_tiff(tmp_path / "plain.tif", []), write_tiff(tmp_path / "no_crs.tif", tie())]
    (tmp_path / "a.txt").write_text("no image")
    assert [place_of(file) for file in (*files, str(tmp_path / "a.txt"), str(tmp_path / "gone.mp4#3"))] == [None] * 4


def test_world_files_have_centres_of_pixels_and_files_of_other_formats_a_place(tmp_path):
    affine = rasterio.Affine(*NORTH_UP.affine)
    kinds = {"a.jp2": "JP2OpenJPEG", "a.png": "PNG"}
    for name, driver in kinds.items():
        with rasterio.open(
            tmp_path / name, "w", driver=driver, width=60, height=40, count=1, dtype="uint8", crs=UTM, transform=affine
        ) as raster:
            raster.write(np.ones((1, 40, 60), np.uint8))
    assert [place_of(str(tmp_path / name)) for name in kinds] == [NORTH_UP] * 2
    aside = tmp_path / "a.png.aux.xml"
    aside.write_text("".join(line for line in aside.read_text().splitlines() if "GeoTransform" not in line))
    centre = (CORNER[0] + SIDE / 2, CORNER[1] - SIDE / 2)
    (tmp_path / "a.pgw").write_text("\n".join(map(str, (SIDE, 0, 0, -SIDE, *centre))))
    assert place_of(str(tmp_path / "a.png")) == NORTH_UP


@pytest.mark.parametrize(
    "affine", [NORTH_UP.affine, (0.3, 0.4, CORNER[0], 0.4, -0.3, CORNER[1])], ids=["north", "turned"]
)
@pytest.mark.parametrize("driver", ["JP2OpenJPEG", "PNG", "GTiff"])
def test_a_converted_file_lies_where_its_file_did_however_that_says_it(driver, affine, tmp_path):
    place, file = Place(UTM, affine), tmp_path / {"JP2OpenJPEG": "a.jp2", "PNG": "a.png", "GTiff": "a.tif"}[driver]
    form = {"width": 60, "height": 40, "count": 1, "dtype": "uint8", "transform": rasterio.Affine(*affine)}
    aside = {"PROFILE": "BASELINE"} if driver == "GTiff" else {}  # in a.tif.aux.xml
    with rasterio.open(file, "w", driver=driver, crs=UTM, **form, **aside) as raster:
        raster.write(np.ones((1, 40, 60), np.uint8))
    assert place_of(str(file)) == place
    write_tiled(str(file), tmp_path / "out.tif")
    assert place_of(str(tmp_path / "out.tif")) == place


def test_names_that_gdal_would_take_for_something_else_are_no_files(tmp_path, monkeypatch):
    vrt = '<VRTDataset rasterXSize="9" rasterYSize="9"><VRTRasterBand dataType="Byte" band="1"><SimpleSource>'
    vrt += '<SourceFilename relativeToVRT="1">a.tif</SourceFilename></SimpleSource></VRTRasterBand></VRTDataset>'
    write_tiff(tmp_path / "a.tif", [*tie(), geo_keys()])
    (tmp_path / "b.tif").write_text(vrt)
    monkeypatch.chdir(tmp_path)
    for name in ("b.tif", "/vsicurl/http://127.0.0.1:9/a.tif", "http://127.0.0.1:9/a.tif", "GTIFF_DIR:1:a.tif", vrt):
        assert place_of(name) is None
        with pytest.raises(UnreadableImageError, match="no TIFF, JPEG 2000, JPEG or PNG file"), opened_raster(name):
            pass


def test_without_the_extra_a_line_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rasterio", None)
    refused(r"pip install 'revisit-detectron2\[geo\]'", place_of, write_tiff(tmp_path / "a.tif", tie()))


@pytest.mark.parametrize("other", ["EPSG:4326", "EPSG:3857", "EPSG:25832", WGS84])
def test_shapes_come_back_from_other_crss(other):
    corners = np.random.default_rng(0).uniform(0, 20_000, (200, 2))
    boxes = shapely.box(*corners.T, *(corners + (30, 50)).T)
    there = reprojected(shapely.transform(boxes, NORTH_UP.on_map), UTM, other)
    back = shapely.transform(reprojected(there, other, UTM), NORTH_UP.in_pixels)
    np.testing.assert_allclose(shapely.get_coordinates(back), shapely.get_coordinates(boxes), atol=1e-6, rtol=0)
    assert np.abs(shapely.get_coordinates(there) - shapely.get_coordinates(boxes)).max() > 1


def test_the_longitude_comes_first_whatever_a_crs_says():
    point = shapely.points(np.array([[500_000.0, 5_820_000.0]]))
    ((longitude, latitude),) = shapely.get_coordinates(reprojected(point, UTM, "EPSG:4326"))
    assert longitude == pytest.approx(15) and 52 < latitude < 53


def test_a_crs_that_is_on_no_earth_is_refused():
    refused("no coordinates of EPSG:4326", reprojected, np.array([]), 'LOCAL_CS["a hall"]', "EPSG:4326")


def test_outlines_of_masks_run_along_edges_with_holes_and_all_parts():
    mask = np.zeros((70, 90), np.uint8)
    mask[10:30, 20:50] = 1
    mask[15:20, 25:30] = 0
    mask[30, 50] = mask[69, 89] = 1
    runs = coco_mask.encode(np.asfortranarray(mask))
    expected = [shapely.box(20, 10, 50, 30) - shapely.box(25, 15, 30, 20), shapely.box(50, 30, 51, 31)]
    expected = shapely.union_all([*expected, shapely.box(89, 69, 90, 70)])
    for counts in (runs["counts"], runs["counts"].decode()):
        outline = shape_of({"bbox": [0, 0, 1, 1], "segmentation": {**runs, "counts": counts}})
        assert outline.is_valid and outline.equals(expected) and outline.geom_type == "MultiPolygon"


@pytest.mark.parametrize("seed", range(5))
def test_outlines_have_the_area_of_any_mask(seed):
    generator = np.random.default_rng(seed)
    mask = (generator.random((37, 23)) < generator.choice([0.0, 0.1, 0.5, 1.0])).astype(np.uint8)
    outline = shape_of({"segmentation": coco_mask.encode(np.asfortranarray(mask))})
    assert outline.area == mask.sum()
    if mask.any():
        rows, columns = np.nonzero(mask)
        assert outline.bounds == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
