"""A window of a file has the samples that the whole image has there, and no more of the file is decoded."""

import io
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from trees import spoil_bytes

from projects.Pixels.sample_files import read_samples
from projects.Pixels.samples import straight
from projects.Pixels.write_tiff import samples_bytes
from projects.Tiles import window_files
from projects.Tiles.window_files import look_at, read_reduced, read_window, window_bytes
from revisit.data.images.image_bytes import UnreadableImageError, read_bytes
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import open_record, read_record
from revisit.errors import UserError

SIZE = (150, 210)
WINDOWS = [(0, 0, 210, 150), (64, 32, 128, 96), (63, 31, 130, 97), (200, 140, 210, 150), (5, 0, 6, 1)]
LAYOUTS = [
    {"tile": (32, 48), "compression": "zlib"},
    {"tile": (32, 48), "compression": "zlib", "predictor": True},
    {"tile": (64, 64), "planarconfig": "separate", "compression": "lzw"},
    {"rowsperstrip": 7, "compression": "zlib"},
    {"rowsperstrip": 7},
    {},
    {"planarconfig": "separate"},
    {"bigtiff": True, "byteorder": ">", "tile": (32, 32)},
    {"byteorder": ">"},
]


def write(path, values, **options):
    """A TIFF of (H, W, C)."""
    options = {"photometric": "minisblack", "planarconfig": "contig", "metadata": None} | options
    if values.shape[2] == 1:
        values, options["planarconfig"] = values[..., 0], None
    tifffile.imwrite(path, np.moveaxis(values, -1, 0) if options["planarconfig"] == "separate" else values, **options)
    return str(path)


def numbers(count=4, kind="uint16", size=SIZE):
    return np.random.default_rng(0).integers(1, 250, (*size, count)).astype(kind)


def assert_as_whole(file, window):
    """Samples of a window, and those that are read of its bytes, against the whole image."""
    left, top, right, bottom = window
    whole = read_samples(Path(file).read_bytes(), file)
    samples = read_window(file, window)
    for found in (samples, read_samples(samples_bytes(samples))):
        assert (
            found.values.dtype == whole.values.dtype
            and found.is_colour == whole.is_colour
            and found.names == whole.names
        )
        np.testing.assert_array_equal(found.values, whole.values[top:bottom, left:right])
        for name in ("missing", "alpha"):
            ours, theirs = getattr(found, name), getattr(whole, name)
            part = None if theirs is None else theirs[top:bottom, left:right]
            is_nowhere = part is None or (name == "missing" and not part.any())
            assert ours is None if is_nowhere else (ours == part).all()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_window_of_a_tiff_is_that_part_of_the_whole(layout, window, tmp_path):
    file = write(tmp_path / "a.tif", numbers(), **layout)
    assert_as_whole(file, window)
    assert look_at(file) == (*SIZE, False)


@pytest.mark.parametrize("kind", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_kinds_of_numbers_and_counts_of_channels(count, kind, tmp_path):
    assert_as_whole(write(tmp_path / "a.tif", numbers(count, kind), tile=(32, 32), compression="zlib"), WINDOWS[2])


def test_jpegs_in_tiles_have_their_tables(tmp_path):
    values = (np.indices(SIZE)[..., None].sum(axis=0) // 2 + np.arange(3) * 20).astype(np.uint8)
    how = {"photometric": "rgb", "tile": (64, 48), "compression": "jpeg", "compressionargs": {"level": 95}}
    file = write(tmp_path / "a.tif", values, **how)
    for window in WINDOWS:
        assert_as_whole(file, window)
    assert np.abs(read_window(file, WINDOWS[1]).values.astype(int) - values[32:96, 64:128]).max() < 9


def test_damaged_files_are_named_whatever_their_bytes_trip(tmp_path):
    data = Path(write(tmp_path / "whole.tif", numbers(), tile=(32, 32), compression="zlib")).read_bytes()
    generator, refused = random.Random(0), 0
    for _ in range(150):
        (tmp_path / "a.tif").write_bytes(spoil_bytes(data, generator))
        try:
            read_window(str(tmp_path / "a.tif"), WINDOWS[1])
        except UnreadableImageError as error:
            refused += 1
            assert str(error).startswith(str(tmp_path / "a.tif")) and "\n" not in str(error)
    assert refused > 10


def test_marks_alpha_names_masks_palettes_and_white_as_zero(tmp_path):
    values = numbers()
    values[20:80, 60:100] = 0
    values[..., 3] *= 200
    how = {"tile": (32, 32), "compression": "zlib"}
    names = "".join(f'<Item name="D" sample="{n}" role="description">{name}</Item>' for n, name in enumerate("abcd"))
    gdal = [(42113, "s", 0, "0", True), (42112, "s", 0, f"<GDALMetadata>{names}</GDALMetadata>", True)]
    files = [
        write(tmp_path / "marked.tif", values, extratags=gdal, **how),
        write(tmp_path / "alpha.tif", values, photometric="rgb", extrasamples=["unassalpha"], **how),
        write(tmp_path / "white.tif", values[..., :1], photometric="miniswhite", **how),
    ]
    for file in files:
        for window in WINDOWS:
            assert_as_whole(file, window)
    assert [look_at(file).has_marks for file in files] == [True, True, False]
    assert read_window(files[0], WINDOWS[1]).names == tuple("abcd") and read_window(files[0], WINDOWS[1]).missing.any()

    with tifffile.TiffWriter(tmp_path / "masked.tif") as writer:
        options = {"metadata": None, "tile": (32, 32), "compression": "zlib"}
        bands = options | {"photometric": "minisblack", "planarconfig": "contig"}
        writer.write(numbers(), **bands)
        writer.write(values[..., 0] > 0, subfiletype=4, **options)
        writer.write(numbers()[::2, ::2], subfiletype=1, **bands)
    assert_as_whole(str(tmp_path / "masked.tif"), WINDOWS[1])
    assert look_at(str(tmp_path / "masked.tif")) == (*SIZE, True)
    assert read_window(str(tmp_path / "masked.tif"), WINDOWS[1]).missing.any()

    palette = np.random.default_rng(0).integers(0, 65535, (3, 256)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "palette.tif", numbers(1, "uint8")[..., 0], colormap=palette, tile=(32, 32))
    assert_as_whole(str(tmp_path / "palette.tif"), WINDOWS[2])


def test_pages_that_are_channels_are_read_by_windows(tmp_path):
    file = str(tmp_path / "a.ome.tif")
    tifffile.imwrite(file, np.moveaxis(numbers(3), -1, 0), metadata={"axes": "CYX"}, ome=True, tile=(32, 32))
    for window in WINDOWS:
        assert_as_whole(file, window)


def test_a_mask_in_a_file_of_its_own_is_left_out_with_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("detectron2.utils.logger._LOG_COUNTER", Counter())
    for name in "ab":
        write(tmp_path / f"{name}.tif", numbers())
        (tmp_path / f"{name}.tif.msk").touch()
        look_at(str(tmp_path / f"{name}.tif"))
    (message,) = caplog.messages
    assert "a.tif.msk is not read" in message


def test_only_the_tiles_that_a_window_touches_are_read(tmp_path, monkeypatch):
    """Of a file whose other tiles are damaged."""
    file = write(tmp_path / "a.tif", numbers(), tile=(32, 32), compression="zlib")
    whole = read_samples((tmp_path / "a.tif").read_bytes()).values
    with tifffile.TiffFile(file) as opened:
        page = opened.pages[0]
        places = list(zip(page.dataoffsets, page.databytecounts, strict=True))
    touched = {7 * row + column for row in (1, 2) for column in (2, 3)}  # of 5 x 7
    data = bytearray((tmp_path / "a.tif").read_bytes())
    for number, (start, size) in enumerate(places):
        if number not in touched:
            data[start : start + size] = b"\xff" * size
    (tmp_path / "a.tif").write_bytes(data)
    read, read_segments = [], tifffile.FileHandle.read_segments

    def counted(*args, **options):
        for data, number in read_segments(*args, **options):
            read.append(number)
            yield data, number

    monkeypatch.setattr(tifffile.FileHandle, "read_segments", counted)
    np.testing.assert_array_equal(read_window(file, (70, 40, 120, 90)).values, whole[40:90, 70:120])
    assert set(read) == touched and len(read) == 4
    with pytest.raises(UnreadableImageError, match=r"a\.tif: [^\n]+$"):
        read_window(file, (0, 0, 40, 40))


def test_tiles_that_a_file_leaves_out_have_no_data(tmp_path):
    def tiles():
        for number in range(35):
            yield numbers(1, size=(32, 32))[..., 0] if number % 2 == 0 else None

    file, mark = str(tmp_path / "a.tif"), [(42113, "s", 0, "0", True)]
    options = {"shape": SIZE, "dtype": np.uint16, "tile": (32, 32), "compression": "zlib", "extratags": mark}
    tifffile.imwrite(file, tiles(), photometric="minisblack", metadata=None, **options)
    for window in WINDOWS:
        assert_as_whole(file, window)


@pytest.mark.parametrize("shape", [(*SIZE, 5), SIZE])
def test_an_array_is_read_by_windows(shape, tmp_path):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    values[10:20] = np.nan
    np.save(tmp_path / "a.npy", values)
    for window in WINDOWS:
        assert_as_whole(str(tmp_path / "a.npy"), window)
    assert look_at(str(tmp_path / "a.npy")) == (*SIZE, True)
    np.save(tmp_path / "bool.npy", values > 0)
    for window in WINDOWS:
        assert_as_whole(str(tmp_path / "bool.npy"), window)


@pytest.mark.parametrize("name", ["a.jpg", "turned.jpg", "a.png", "grey.png", "deep.png", "alpha.png"])
def test_photographs_are_read_by_windows_and_decoded_once(name, tmp_path, monkeypatch):
    values = numbers(4, "uint8")
    image = {"grey.png": values[..., 0], "deep.png": values[..., 0].astype(np.uint16) * 256, "alpha.png": values}
    exif = Image.Exif()
    if name == "turned.jpg":
        exif[0x0112], image[name] = 8, values[..., :3].swapaxes(0, 1)
    Image.fromarray(image.get(name, values[..., :3])).save(tmp_path / name, exif=exif)
    assert look_at(str(tmp_path / name)) == (*SIZE, False)
    file = str(tmp_path / name)
    decoded, read = [], window_files.read_samples
    monkeypatch.setattr(window_files, "read_samples", lambda *args: decoded.append(args) or read(*args))
    for window in WINDOWS:
        assert_as_whole(file, window)
    assert len(decoded) == 1
    if name != "deep.png":
        left, top, right, bottom = WINDOWS[1]
        part = read_record({"file_name": file, "window": WINDOWS[1]}, PHOTOGRAPHS)
        np.testing.assert_array_equal(part, read_record({"file_name": file}, PHOTOGRAPHS)[top:bottom, left:right])


def test_a_record_with_a_window_is_a_file_of_its_own(tmp_path):
    file = write(tmp_path / "a.tif", numbers(3, "uint8"), photometric="rgb", tile=(32, 32), compression="zlib")
    record = {"file_name": file, "window": (64, 32, 128, 90)}
    picture = open_record(record, PHOTOGRAPHS)
    assert picture.size == (58, 64) and "window (64, 32, 128, 90)" in picture.name
    np.testing.assert_array_equal(picture.decode(), numbers(3)[32:90, 64:128])
    assert read_bytes(record, 2) == b"P6" == window_bytes(record)[:2]


def test_files_that_cannot_be_read_by_windows_are_named(tmp_path, monkeypatch):
    def refusal(file):
        with pytest.raises(UserError) as error:
            look_at(str(file))
        assert "\n" not in str(error.value) and str(file) in str(error.value)
        return str(error.value)

    monkeypatch.setattr("projects.Pixels.tiff.MAX_MEMORY", 10_000)
    file = write(tmp_path / "strip.tif", numbers(), compression="zlib")
    assert "strips or tiles of 210 x 150 px: save it in tiles, such as by gdal_translate" in refusal(file)
    assert look_at(write(tmp_path / "plain.tif", numbers())) == (*SIZE, False)
    turned = write(tmp_path / "turned.tif", numbers(), extratags=[(274, "H", 1, 6, True)])
    assert "to be turned (orientation 6): save it upright" in refusal(turned)
    lab = write(tmp_path / "lab.tif", numbers(3, "uint8"), photometric="cielab")
    assert "a TIFF of CIELAB colours: expected grey levels, a palette or RGB" in refusal(lab)
    monkeypatch.setattr("revisit.data.images.opening.MAX_MEMORY", 10_000)
    Image.fromarray(numbers(3, "uint8")).save(tmp_path / "large.png")
    assert "210 x 150 pixels" in refusal(tmp_path / "large.png")
    assert "saved in tiles: gdal_translate -co TILED=YES" in refusal(tmp_path / "large.png")
    (tmp_path / "no.tif").write_bytes(b"II*\0" + bytes(30))
    refusal(tmp_path / "no.tif")
    refusal(tmp_path / "missing.png")


def test_a_file_that_became_smaller_is_named(tmp_path):
    for layout in ({}, {"tile": (32, 32), "compression": "zlib"}):
        file = write(tmp_path / "a.tif", numbers(), **layout)
        with pytest.raises(UnreadableImageError, match=r"a\.tif: no pixels in a part of \(150, 0, 220, 20\)"):
            read_window(file, (150, 0, 220, 20))
    np.save(tmp_path / "a.npy", np.ones((20, 30), np.float32))
    with pytest.raises(UnreadableImageError, match=r"a\.npy: no pixels in a part of \(0, 0, 40, 20\)"):
        read_window(str(tmp_path / "a.npy"), (0, 0, 40, 20))
    buffer = io.BytesIO()
    np.save(buffer, np.ones((20, 30), np.float32))
    (tmp_path / "a.npy").write_bytes(buffer.getvalue()[:-9])
    with pytest.raises(UnreadableImageError, match=r"a\.npy: [^\n]+$"):
        read_window(str(tmp_path / "a.npy"), (0, 0, 10, 10))


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_reduced_transparency_is_the_mean_also_where_a_square_leaves_the_image(tmp_path, kind):
    """It may be a channel, as infrared is in files of older programs."""
    values = np.full((10, 14, 4), 0.5 if kind == "float32" else 100, kind)
    path = write(tmp_path / "a.tif", values, photometric="rgb", extrasamples=["unassalpha"])
    reduced = read_reduced(str(path), (0, 0, 14, 10), 4)
    assert reduced.alpha.shape == (3, 4) and (reduced.alpha == values[0, 0, 3]).all()


def test_reduced_colours_times_their_transparency_are_those_of_the_image(tmp_path):
    shares = np.where(np.arange(140).reshape(10, 14) % 2, 0, 100).astype(np.uint8)
    values = np.stack([shares // 2] * 3 + [shares], -1)
    path = write(tmp_path / "a.tif", values, photometric="rgb", extrasamples=["assocalpha"])
    reduced = straight(read_reduced(str(path), (0, 0, 14, 10), 4))
    assert (reduced.values == 127).all()


def test_rasters_of_gdal_say_that_their_colours_are_premultiplied(tmp_path):
    pytest.importorskip("rasterio")
    values = np.full((32, 32, 4), 64, np.uint8)
    options = {"photometric": "rgb", "compression": "lerc", "tile": (16, 16)}
    for extra in ("assocalpha", "unassalpha"):
        path = write(tmp_path / f"{extra}.tif", values, extrasamples=[extra], **options)
        samples = read_window(str(path), (0, 0, 20, 20))
        assert samples.is_premultiplied == (extra == "assocalpha")
        assert (samples.alpha == 64).all() and (samples.values == 64).all()
