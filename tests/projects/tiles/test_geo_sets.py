"""Labels on a map, in any CRS, become those of the pixels that they lie on."""

import json
from pathlib import Path

import numpy as np
import pytest
from geotiffs import CORNER, SIDE, UTM, geo_keys, tie, write_tiff
from trees import logged, one_line_error, refused

from projects.Tiles.geo import WGS84, Place, reprojected
from projects.Tiles.map_labels import read_shapes
from revisit.data.sources.catalog import get_records
from revisit.data.sources.coco_truth import mask_area

from detectron2.data import MetadataCatalog
from detectron2.structures import BoxMode

pyogrio = pytest.importorskip("pyogrio")
shapely = pytest.importorskip("shapely")

PLACE = Place(UTM, (SIDE, 0.0, CORNER[0], 0.0, -SIDE, CORNER[1]))
SIZE = (40, 60)
EAST = (CORNER[0] + SIDE * SIZE[1], CORNER[1])  # the corner of a raster next to the first
SHAPES = [  # px of the first raster
    shapely.Polygon([(3.25, 4.5), (20, 6), (12, 31)]),
    shapely.box(30, 10, 36, 14),
    shapely.box(54, 20, 62, 24),  # three quarters in the first raster, the rest in the second
    shapely.box(70, 5, 75, 9),  # in the second
    shapely.box(500, 5, 510, 9),  # in none
]
KINDS = ["oak", "fir", "oak", "fir", "elm"]


@pytest.fixture
def scans(tmp_path):
    (tmp_path / "scans").mkdir()
    write_tiff(tmp_path / "scans/a.tif", [*tie(), geo_keys()], SIZE)
    write_tiff(tmp_path / "scans/b.tif", [*tie(corner=EAST), geo_keys()], SIZE)
    return tmp_path / "scans"


def write_labels(path: Path, crs: str = UTM, shapes=SHAPES, **columns) -> Path:
    """Shapes of px of the first raster in a file of any format, with a class each."""
    columns = columns or {"class": KINDS}
    on_map = reprojected(shapely.transform(np.array(shapes, object), PLACE.on_map), UTM, crs)
    values = [np.array(each, object if isinstance(each[0], str) else None) for each in columns.values()]
    pyogrio.raw.write(path, shapely.to_wkb(on_map), values, list(columns), geometry_type="Unknown", crs=crs)
    return path


def outlines_of(record: dict) -> list:
    return [shapely.Polygon(np.reshape(each["segmentation"][0], (-1, 2))) for each in record["annotations"]]


@pytest.mark.parametrize("crs", [UTM, "EPSG:3857", "EPSG:25832", WGS84])
@pytest.mark.parametrize("name", ["a.gpkg", "a.geojson", "a.shp"])
def test_labels_of_any_crs_lie_on_their_pixels(name, crs, scans, tmp_path):
    name = f"geo:{scans}:{write_labels(tmp_path / name, crs)}"
    first, second = get_records(name)
    assert MetadataCatalog.get(name).thing_classes == ["elm", "fir", "oak"]
    assert [record["file_name"] for record in (first, second)] == [f"{scans}/a.tif", f"{scans}/b.tif"]
    assert (first["height"], first["width"]) == SIZE and (first["image_id"], second["image_id"]) == (0, 1)
    assert [each["category_id"] for each in first["annotations"]] == [2, 1, 2]
    frame = shapely.box(0, 0, SIZE[1], SIZE[0])
    for each, outline, shape in zip(first["annotations"], outlines_of(first), SHAPES, strict=False):
        expected = shape.intersection(frame)
        assert each["bbox_mode"] == BoxMode.XYXY_ABS and each["iscrowd"] == 0
        np.testing.assert_allclose(each["bbox"], expected.bounds, atol=1e-6)
        assert outline.hausdorff_distance(expected) < 1e-6
    rest, whole = second["annotations"]
    np.testing.assert_allclose(rest["bbox"], (0, 20, 2, 24), atol=1e-6)
    np.testing.assert_allclose(whole["bbox"], (10, 5, 15, 9), atol=1e-6)
    assert rest["iscrowd"] == 1 and rest["ignored"] and "ignored" not in whole


@pytest.mark.parametrize("spelling", ["EPSG:25832", "urn:ogc:def:crs:EPSG::25832", "urn:ogc:def:crs:EPSG:9.6:25832"])
def test_a_geojson_names_its_crs_in_a_short_or_a_long_way_also_after_a_byte_order_mark(spelling, scans, tmp_path):
    labels = write_labels(tmp_path / "a.geojson", "EPSG:25832")
    content = json.loads(labels.read_text())
    content["crs"] = {"type": "name", "properties": {"name": spelling}}
    expected = get_records(f"geo:{scans}:{labels}")
    other = tmp_path / "b.geojson"
    other.write_text(json.dumps(content), encoding="utf-8-sig")
    assert get_records(f"geo:{scans}:{other}") == expected


def test_what_is_left_out_is_counted(scans, tmp_path):
    write_tiff(scans / "plain.tif", [])
    labels = write_labels(tmp_path / "a.gpkg", shapes=[*SHAPES, shapely.Point(3, 4)], Label=[*KINDS, "oak"])
    lines = [line for _, line in logged(get_records, f"geo:{scans}:{labels}")]
    assert lines == [
        f"classes of {labels} are the column Label",
        f"1 of 6 shapes of {labels} are no polygons",
        f"1 of 3 images below {scans} have no coordinates",
        f"1 of 5 polygons of {labels} lie in no image",
    ]


def test_without_a_column_of_classes_there_is_one(scans, tmp_path):
    labels = write_labels(tmp_path / "a.gpkg", height=np.arange(5.0))
    name = f"geo:{scans}:{labels}"
    lines = logged(get_records, name)
    assert MetadataCatalog.get(name).thing_classes == ["object"]
    assert any("object, for it has no column class, label" in line for _, line in lines)


def test_classes_may_be_numbers_of_which_some_are_missing(scans, tmp_path):
    labels = write_labels(tmp_path / "a.gpkg", species=[3.0, np.nan, 12, 3, 3])
    name = f"geo:{scans}:{labels}"
    lines = logged(get_records, name)
    assert MetadataCatalog.get(name).thing_classes == ["12", "3"]
    assert any(f"1 of 5 shapes of {labels} have no class" in line for _, line in lines)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_classes_that_are_numbers_keep_all_their_digits(kind, scans, tmp_path):
    keys = np.array([2882316, 2882318, np.nan, 0.1, 2878688], kind)
    name = f"geo:{scans}:{write_labels(tmp_path / 'a.gpkg', species=keys)}"
    get_records(name)
    assert MetadataCatalog.get(name).thing_classes == ["0.1", "2878688", "2882316", "2882318"]


def test_holes_are_no_part_of_an_object(scans, tmp_path):
    ring = shapely.box(10, 5, 30, 25) - shapely.box(12, 8, 15, 10) - shapely.box(20, 8, 22, 20)
    parts = shapely.MultiPolygon([ring, shapely.box(40, 5, 50, 9)])
    (first, _) = get_records(f"geo:{scans}:{write_labels(tmp_path / 'a.gpkg', shapes=[parts], name=['court'])}")
    (court,) = first["annotations"]
    np.testing.assert_allclose(court["bbox"], (10, 5, 50, 25), atol=1e-6)
    assert mask_area(court["segmentation"], *SIZE) == pytest.approx(parts.area, abs=1)


def test_an_image_without_shapes_counts_as_one_without_labels(scans, tmp_path):
    first, second = get_records(f"geo:{scans}:{write_labels(tmp_path / 'a.gpkg', shapes=SHAPES[:2], label=KINDS[:2])}")
    assert "without_labels" not in first and second["without_labels"] and second["annotations"] == []


def test_windows_of_rasters_have_a_place_in_their_names(scans, tmp_path):
    records = get_records(f"tiles:32:geo:{scans}:{write_labels(tmp_path / 'a.gpkg')}")
    assert [record["window"] for record in records[:2]] == [(0, 0, 32, 32), (28, 0, 60, 32)] and len(records) == 8
    boxes = [[each["bbox"] for each in record["annotations"]] for record in records[:2]]
    np.testing.assert_allclose(boxes[0][1], (30, 10, 32, 14), atol=1e-6)
    np.testing.assert_allclose(boxes[1][0], (2, 10, 8, 14), atol=1e-6)
    assert [each["iscrowd"] for each in records[0]["annotations"]] == [0, 1]


def test_geojson_says_its_crs_or_is_wgs84(tmp_path):
    content = json.loads(write_labels(tmp_path / "a.geojson", WGS84).read_text())
    for said, crs in {"urn:ogc:def:crs:EPSG::25832": "EPSG:25832", "urn:ogc:def:crs:OGC:1.3:CRS84": WGS84}.items():
        content["crs"] = {"type": "name", "properties": {"name": said}}
        (tmp_path / "b.geojson").write_text(json.dumps(content))
        assert read_shapes(tmp_path / "b.geojson").crs == crs
    content["crs"]["properties"]["name"] = "+init=/etc/passwd:x"
    (tmp_path / "b.geojson").write_text(json.dumps(content))
    refused("says no CRS", read_shapes, tmp_path / "b.geojson")


def test_what_is_no_file_of_labels_is_refused_in_one_line(scans, tmp_path):
    write_labels(tmp_path / "bare.shp")
    (tmp_path / "bare.prj").unlink()
    write_labels(tmp_path / "two.gpkg")
    more = {"layer": "b", "geometry_type": "Polygon", "crs": UTM}
    pyogrio.raw.write(tmp_path / "two.gpkg", shapely.to_wkb(SHAPES), [], [], **more)
    write_labels(tmp_path / "far.gpkg", shapes=SHAPES[4:], name=["elm"])
    write_labels(tmp_path / "points.gpkg", shapes=[shapely.Point(3, 4)], name=["elm"])
    layer = "<OGRVRTLayer name='a'><SrcDataSource>http://127.0.0.1:9/a</SrcDataSource></OGRVRTLayer>"
    texts = {
        "vrt.gpkg": f"<OGRVRTDataSource>{layer}</OGRVRTDataSource>",
        "odd.geojson": '{"type": "gdal_streamed_alg", "command_line": "x"}',
        "bad.json": '{"features": [3]}',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    problems = {
        "bare.shp": "says no CRS: expected one",
        "two.gpkg": "has the layers two, b: expected one",
        "far.gpkg": "none of 1 polygons .* lies in an image below",
        "points.gpkg": "no polygon with a class among 1 shapes",
        "vrt.gpkg": "neither GeoPackage nor Shapefile",
        "odd.geojson": "no FeatureCollection",
        "bad.json": "reading .*bad.json",
        "gone.gpkg": "no such file",
        "a.kml": "expected shapes on a map in a file of .gpkg, .shp, .geojson, .json",
    }
    for name, problem in problems.items():
        refused(problem, get_records, f"geo:{scans}:{tmp_path / name}")
    for scan in scans.iterdir():
        write_tiff(scan, [])
    assert "no image below" in one_line_error(f"geo:{scans}:{write_labels(tmp_path / 'a.gpkg')}")
