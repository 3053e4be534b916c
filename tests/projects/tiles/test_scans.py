"""Windows of files that tifffile does not read: JPEG 2000 and others by GDAL, whole slides by openslide."""

import os
import socket
import sys
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import tifffile
from geotiffs import CORNER, SIDE, UTM
from PIL import Image
from trees import one_line_error, refused

from projects.Tiles import slides
from projects.Tiles.geo import opened_raster, place_of
from projects.Tiles.window_files import look_at, read_window
from revisit.data.images.image_bytes import UnreadableImageError
from revisit.data.images.pixel_format import COLOURS, PHOTOGRAPHS
from revisit.data.images.reader import read_record
from revisit.data.sources.catalog import get_records

rasterio = pytest.importorskip("rasterio")
ColorInterp = pytest.importorskip("rasterio.enums").ColorInterp
pytest.importorskip("openslide")

SIZE = (150, 210)
WINDOWS = [(0, 0, 210, 150), (64, 32, 128, 96), (63, 31, 130, 97), (200, 140, 210, 150)]


def numbers(count=4, kind="uint16") -> np.ndarray:
    return np.random.default_rng(0).integers(1, 250, (*SIZE, count)).astype(kind)


def write_raster(path: Path, values: np.ndarray, driver="JP2OpenJPEG", names=(), kinds=(), **options) -> str:
    lossless = {"QUALITY": "100", "REVERSIBLE": "YES"} if driver == "JP2OpenJPEG" else {}
    height, width, count = values.shape
    shape = {"height": height, "width": width, "count": count, "dtype": values.dtype.name}
    place = {"crs": UTM, "transform": rasterio.Affine(SIDE, 0, CORNER[0], 0, -SIDE, CORNER[1])}
    with rasterio.open(path, "w", driver=driver, **shape, **place, **lossless, **options) as raster:
        raster.write(np.moveaxis(values, -1, 0))
        raster.colorinterp = [ColorInterp[kind] for kind in kinds] or raster.colorinterp
        for place, name in enumerate(names, start=1):
            raster.set_band_description(place, name)
    return str(path)


def assert_is(file: str, values: np.ndarray) -> None:
    for left, top, right, bottom in WINDOWS:
        samples = read_window(file, (left, top, right, bottom))
        assert samples.values.dtype == values.dtype
        np.testing.assert_array_equal(samples.values, values[top:bottom, left:right])


@pytest.mark.parametrize("count, kind", [(1, "uint8"), (3, "uint8"), (4, "uint16"), (5, "int16")])
def test_windows_of_jpeg_2000(count, kind, tmp_path):
    values = numbers(count, kind)
    file = write_raster(tmp_path / "a.jp2", values, kinds=COLOURS * (count == 3), BLOCKXSIZE=64, BLOCKYSIZE=64)
    assert_is(file, values)
    assert look_at(file) == (*SIZE, False)
    samples = read_window(file, WINDOWS[1])
    assert samples.missing is None and samples.alpha is None and samples.is_colour == (count == 3)


def test_colours_and_transparency_are_what_gdal_says(tmp_path):
    values = numbers(4, "uint8")
    values[20:80, 60:100, 3] = 0
    file = write_raster(tmp_path / "a.jp2", values, kinds=(*COLOURS, "alpha"))
    samples = read_window(file, WINDOWS[1])
    assert samples.is_colour and look_at(file).has_marks
    np.testing.assert_array_equal(samples.values, values[32:96, 64:128, :3])
    np.testing.assert_array_equal(samples.missing, values[32:96, 64:128, 3] == 0)


def test_tiffs_of_other_compressions_have_their_names_and_marks(tmp_path):
    values = numbers(2, "float32")
    values[20:80, 60:100] = -9999
    how = {"compress": "LERC", "tiled": True, "blockxsize": 64, "blockysize": 64, "nodata": -9999}
    file = write_raster(tmp_path / "a.tif", values, "GTiff", names=["near", "far"], **how)
    assert_is(file, values)
    samples = read_window(file, WINDOWS[1])
    assert samples.names == ("near", "far") and look_at(file) == (*SIZE, True)
    np.testing.assert_array_equal(samples.missing, (values[32:96, 64:128] == -9999).all(axis=-1))


@pytest.mark.parametrize("nodata", [None, 0], ids=["no mark", "mark"])
def test_marks_are_kept_apart_from_transparency(tmp_path, nodata):
    values = numbers(4, "uint16")
    values[20:80, 60:100] = 0
    values[100:, :, 3] = 0
    how = {"compress": "LERC", "tiled": True, "blockxsize": 64, "blockysize": 64, "nodata": nodata}
    file = write_raster(tmp_path / "a.tif", values, "GTiff", kinds=(*COLOURS, "alpha"), **how)
    samples = read_window(file, WINDOWS[0])
    np.testing.assert_array_equal(samples.missing, values[..., 3] == 0)
    if nodata is None:
        assert samples.marked is None
    else:
        np.testing.assert_array_equal(samples.marked, (values == 0).all(axis=-1))


def write_slide(path: Path, values: np.ndarray) -> str:
    """A pyramid of two levels, in tiles, as any of openslide's kinds has them."""
    how = {"photometric": "rgb", "tile": (64, 64), "compression": "zlib", "metadata": None}
    with tifffile.TiffWriter(path) as writer:
        writer.write(values, **how)
        writer.write(values[::2, ::2], subfiletype=1, **how)
    return str(path)


def test_windows_of_slides_are_of_full_resolution(tmp_path):
    values = numbers(3, "uint8")
    file = write_slide(tmp_path / "a.svs", values)
    assert_is(file, values)
    assert look_at(file) == (*SIZE, False)
    assert read_window(file, WINDOWS[1]).is_colour
    with pytest.raises(UnreadableImageError, match="a.svs: no pixels in a part of"):
        read_window(file, (200, 140, 220, 150))


class HalfScanned:
    """A slide whose right half was not scanned, as openslide shows it: transparent."""

    dimensions = (100, 80)

    def read_region(self, corner, level, size):
        columns = corner[0] + np.arange(size[0])
        pixels = np.full((size[1], size[0], 4), 200, np.uint8)
        pixels[:, columns >= 50] = 0
        return Image.fromarray(pixels)


def test_what_was_not_scanned_of_a_slide_is_missing(monkeypatch):
    monkeypatch.setattr(slides, "_opened", lambda file_name: HalfScanned())
    samples = slides.read_slide("a.mrxs", (40, 10, 60, 20))
    np.testing.assert_array_equal(samples.missing, np.arange(40, 60) >= np.full((10, 1), 50))
    assert (samples.values[:, :10] == 200).all() and slides.read_slide("a.mrxs", (0, 0, 50, 9)).missing is None


def opened_by(file: str) -> tuple[int, int]:
    return os.getpid(), id(slides._opened(file))


def test_each_process_opens_a_slide_once(tmp_path):
    file = write_slide(tmp_path / "a.svs", numbers(3, "uint8"))
    ours = opened_by(file)
    assert opened_by(file) == ours
    with get_context("fork").Pool(1) as pool:
        theirs = pool.map(opened_by, [file] * 2)
    assert theirs[0] == theirs[1] and theirs[0][1] != ours[1]


def test_scans_of_a_folder_are_cut_whatever_reads_them(tmp_path):
    values = numbers(3, "uint8")
    (tmp_path / "scans").mkdir()
    write_slide(tmp_path / "scans/a.svs", values)
    write_raster(tmp_path / "scans/b.jp2", values, kinds=COLOURS)
    records = get_records(f"tiles:128:scans:{tmp_path}/scans")
    assert len(records) == 8 and {Path(record["file_name"]).name for record in records} == {"a.svs", "b.jp2"}
    for record in records:
        left, top, right, bottom = record["window"]
        np.testing.assert_array_equal(read_record(record, PHOTOGRAPHS), values[top:bottom, left:right])
    (tmp_path / "none").mkdir()
    assert "no scans in" in one_line_error(f"scans:{tmp_path}/none")


def test_damaged_files_are_named(tmp_path):
    whole = Path(write_raster(tmp_path / "a.jp2", numbers(3, "uint8"))).read_bytes()
    for name, data in {
        "b.jp2": whole[: len(whole) // 3],
        "c.jp2": whole[:40],
        "d.svs": b"II*\0nothing",
        "e.ndpi": b"",
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UnreadableImageError) as error:
            read_window(str(tmp_path / name), WINDOWS[0])
        assert str(error.value).startswith(str(tmp_path / name)) and "\n" not in str(error.value)
    for name in ("c.jp2", "d.svs", "gone.svs"):
        refused(f"{name}", look_at, str(tmp_path / name))


@pytest.mark.parametrize("driver, name", [("JP2OpenJPEG", "a.jp2"), ("GTiff", "a.tif")])
def test_no_file_next_to_a_raster_makes_gdal_ask_a_server(driver, name, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"/vsicurl/http://127.0.0.1:{server.getsockname()[1]}/b.tif"
        options = {"compress": "WEBP"} if driver == "GTiff" else {}
        file = write_raster(tmp_path / name, numbers(3, "uint8"), driver, **options)
        band = f'<VRTRasterBand dataType="Byte" band="1"><SimpleSource><SourceFilename>{url}</SourceFilename>'
        vrt = f'<VRTDataset rasterXSize="9" rasterYSize="9">{band}</SimpleSource></VRTRasterBand></VRTDataset>'
        elsewhere = f'<Metadata domain="OVERVIEWS"><MDI key="OVERVIEW_FILE">{url}</MDI></Metadata>'
        sides = {".aux.xml": f"<PAMDataset>{elsewhere}</PAMDataset>", ".ovr": vrt, ".msk": vrt}
        for suffix, text in sides.items():
            Path(f"{file}{suffix}").write_text(text)
        assert place_of(file).crs == UTM and look_at(file) == (*SIZE, False)
        assert read_window(file, WINDOWS[1]).missing is None
        with opened_raster(file, GDAL_HTTP_TIMEOUT="1") as raster, suppress(rasterio.errors.RasterioError):
            raster.overviews(1)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("name, package, extra", [("a.jp2", "rasterio", "geo"), ("a.svs", "openslide", "slides")])
def test_without_a_reader_a_line_names_its_extra(name, package, extra, tmp_path, monkeypatch):
    (tmp_path / name).write_bytes(b"\xff\x4f\xff\x51")
    monkeypatch.setitem(sys.modules, package, None)
    refused(rf"{package}.* pip install 'revisit-detectron2\[{extra}\]'", look_at, str(tmp_path / name))
    with pytest.raises(UnreadableImageError, match=rf"{name}: .*\[{extra}\]"):
        read_window(str(tmp_path / name), WINDOWS[0])
