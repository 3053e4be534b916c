"""TIFFs by their tags, each against the array that was written."""

import io
import logging
import os
import random
import re
from collections import Counter

import numpy as np
import pytest
import tifffile
from commands import REAL_DATA
from PIL import Image
from trees import spoil_bytes

from projects.Pixels.sample_files import read_samples
from projects.Pixels.samples import Samples
from projects.Pixels.tiff import GDAL_METADATA, tags_to_keep
from projects.Pixels.write_tiff import tiff_bytes
from revisit.data.images.image_bytes import (
    WINDOW,
    DeepImageError,
    TruncatedImageError,
    UnreadableImageError,
    read_bytes,
)
from revisit.data.images.opening import MAX_MEMORY
from revisit.data.images.reader import Picture

CASES = int(os.environ.get("FUZZ_CASES", 300))
KINDS = ("uint8", "uint16", "uint32", "int8", "int16", "int32", "float16", "float32", "float64")
NOT_RGB = REAL_DATA / "not_rgb"
SIZE = (40, 56)


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch):
    monkeypatch.setattr("detectron2.utils.logger._LOG_COUNTER", Counter())


def numbers(*shape, kind="uint16", seed=0):
    """Over nearly all of the range of a kind, negative ones too."""
    rng = np.random.default_rng(seed)
    if kind.startswith("float"):
        return rng.normal(0, 1000, shape).astype(kind)
    return rng.integers(np.iinfo(kind).min + 3, np.iinfo(kind).max - 3, shape, kind)


def tiff(values, **options) -> bytes:
    file = io.BytesIO()
    options = {"photometric": "minisblack"} | options
    tifffile.imwrite(file, values, **options)
    return file.getvalue()


def pages(*values, **options) -> bytes:
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        for each in values:
            page = each if isinstance(each, dict) else {"data": each}
            writer.write(**{"photometric": "minisblack", "metadata": None, **options, **page})
    return file.getvalue()


def refusal(data) -> str:
    with pytest.raises(DeepImageError) as error:
        read_samples(data)
    assert "\n" not in str(error.value)
    return str(error.value)


def same(samples: Samples, values, missing=None, **fields) -> bool:
    assert samples.values.dtype == values.dtype.newbyteorder("=") and samples.values.flags.c_contiguous
    np.testing.assert_array_equal(samples.values, values)
    assert (samples.missing is None) == (missing is None)
    assert missing is None or (samples.missing == missing).all()
    return {name: getattr(samples, name) for name in fields} == fields


@pytest.mark.parametrize("planes", ["contig", "separate"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 4, 5, 13, 40])
def test_bands_are_channels_by_the_tags_however_they_lie(count, kind, planes):
    values = numbers(*SIZE, count, kind=kind)
    stored = values if planes == "contig" else np.moveaxis(values, -1, 0)
    stored = stored if count > 1 else values[..., 0]
    data = tiff(stored, **({"planarconfig": planes} if count > 1 else {}))
    assert same(read_samples(data), values, names=(), is_colour=False, alpha=None)
    assert Picture(data).size == SIZE


@pytest.mark.parametrize(
    "options",
    [{"compression": name} for name in ("lzw", "zlib", "packbits", "zstd", "lzma")]
    + [{"compression": "zlib", "predictor": True}, {"tile": (16, 32), "compression": "lzw"}, {"tile": (16, 16)}]
    + [{"bigtiff": True}, {"byteorder": ">"}, {"rowsperstrip": 7}, {"byteorder": ">", "compression": "zlib"}],
    ids=str,
)
def test_compression_tiles_strips_and_the_order_of_bytes_change_no_number(options):
    values = numbers(*SIZE, 5, kind="int16")
    assert same(read_samples(tiff(values, planarconfig="contig", **options)), values)


def test_bands_in_jpeg_are_close_and_colours_of_it_are_rgb():
    y, x = np.mgrid[0:48, 0:64]
    smooth = np.stack([2 * y, 3 * x, y + x, 250 - 3 * y], -1).astype(np.uint8)
    for count, colour in ((4, False), (3, True), (1, False)):
        values = smooth[..., :count] if count > 1 else smooth[..., 0]
        options = {"photometric": "rgb" if colour else "minisblack", "planarconfig": "contig" if count > 1 else None}
        samples = read_samples(tiff(values, compression="jpeg", compressionargs={"level": 95}, **options))
        assert samples.values.shape == (48, 64, count) and samples.is_colour == colour
        assert np.abs(samples.values.astype(int) - smooth[..., :count]).max() < 12


@pytest.mark.parametrize("bits", [1, 2, 4, 12])
def test_samples_of_few_bits_are_the_numbers_that_they_hold(bits):
    values = np.random.default_rng(0).integers(0, 2**bits, (24, 32)).astype(np.uint16 if bits > 8 else np.uint8)
    stored = values.astype(bool) if bits == 1 else values
    options = {} if bits == 1 else {"bitspersample": bits}
    assert same(read_samples(tiff(stored, **options)), values[..., None])


def test_extra_samples_say_what_is_transparency_and_what_data():
    values = numbers(*SIZE, 5)
    values[:3, :, 3] = 0
    rgb, hole = values[..., :3], values[..., 3] == 0
    for kind in ("assocalpha", "unassalpha"):
        samples = read_samples(tiff(values[..., :4], photometric="rgb", extrasamples=[kind]))
        assert same(samples, rgb, hole, is_colour=True) and (samples.alpha == values[..., 3]).all()
    samples = read_samples(tiff(values[..., :4], photometric="rgb", extrasamples=["unspecified"]))
    assert same(samples, values[..., :4], is_colour=True, alpha=None)
    samples = read_samples(tiff(values, photometric="rgb", extrasamples=["unspecified", "unassalpha"]))
    assert same(samples, values[..., :4], is_colour=True) and (samples.alpha == values[..., 4]).all()
    planes = tiff(np.moveaxis(values[..., 2:4], -1, 0), planarconfig="separate", extrasamples=["unassalpha"])
    assert same(read_samples(planes), values[..., 2:3], hole)
    both = tiff(values, photometric="rgb", extrasamples=["unassalpha", "unassalpha"])
    assert "2 samples of transparency" in refusal(both)


def test_the_mark_of_no_data_and_nan_are_missing():
    values = numbers(*SIZE, 3)
    values[4, 5], values[6, 7, 0] = 65535, 65535  # all channels have it, and one
    hole = np.zeros(SIZE, bool)
    hole[4, 5] = True
    mark = [(42113, "s", 0, "65535", True)]
    assert same(read_samples(tiff(values, photometric="rgb", extratags=mark)), values, hole)
    for text, expected in (("-9999", None), ("0.5", None), ("nan", None), ("many", None), ("6,5535e4", hole)):
        tags = [(42113, "s", 0, text, True)]
        assert same(read_samples(tiff(values, photometric="rgb", extratags=tags)), values, expected)
    floats = values.astype(np.float32)
    floats[4, 5] = -3.4e38
    floats[8, 9, 1], floats[9, 9, 2] = np.nan, np.inf
    hole[8, 9] = hole[9, 9] = True
    tags = [(42113, "s", 0, "-3.39999999999999996e+38", True)]
    assert same(read_samples(tiff(floats, photometric="rgb", extratags=tags)), floats, hole)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("int64", str(2**63 - 1)), ("int64", str(2**53 + 1)), ("uint64", str(2**64 - 1)), ("int64", "-9999.0")],
)
def test_marks_of_no_data_have_all_64_bits(kind, text):
    mark = int(text) if text.isdigit() else -9999
    values = numbers(*SIZE, kind=kind)
    values[:3], values[3] = mark, mark - 1
    bands = values[..., None]
    missing = np.repeat(np.arange(SIZE[0]) < 3, SIZE[1]).reshape(SIZE)
    assert same(read_samples(tiff(values, extratags=[(42113, "s", 0, text, True)])), bands, missing)
    assert same(read_samples(tiff(values, extratags=[(42113, "s", 0, "0.5", True)])), bands)


def test_where_white_is_zero_grey_is_inverted():
    for kind, top in (("uint8", 255), ("uint16", 65535), ("int16", -1), ("uint32", 2**32 - 1)):
        values = numbers(*SIZE, kind=kind)
        expected = (top - values.astype(np.int64)).astype(kind)[..., None]
        assert same(read_samples(tiff(values, photometric="miniswhite")), expected), kind
    bits = numbers(*SIZE, kind="uint8") > 99
    assert same(read_samples(tiff(bits, photometric="miniswhite")), (~bits).astype(np.uint8)[..., None])
    hole = np.zeros(SIZE, bool)
    hole[3, 3] = True
    values = np.where(hole, 0, numbers(*SIZE))
    data = tiff(values, photometric="miniswhite", extratags=[(42113, "s", 0, "0", True)])
    assert same(read_samples(data), (65535 - values)[..., None], hole)  # the mark is of the stored number
    assert "MINISWHITE" in refusal(tiff(numbers(*SIZE, kind="float32"), photometric="miniswhite"))
    assert "MINISWHITE" in refusal(tiff(numbers(*SIZE, 4), photometric="miniswhite", planarconfig="contig"))


def test_a_grey_palette_is_its_levels_and_another_one_colours():
    index = numbers(*SIZE, kind="uint8")
    rng = np.random.default_rng(1)
    colours = rng.integers(0, 256, (3, 256)).astype(np.uint16)
    greys = np.repeat(colours[:1], 3, axis=0)
    for scale in (1, 257):
        found = read_samples(tiff(index, photometric="palette", colormap=colours * np.uint16(scale)))
        assert same(found, colours.T[index].astype(np.uint8), is_colour=True)
        found = read_samples(tiff(index, photometric="palette", colormap=greys * np.uint16(scale)))
        assert same(found, greys[0][index].astype(np.uint8)[..., None], is_colour=False)


@pytest.mark.parametrize("way", ["OME", "ImageJ", "tifffile"])
def test_pages_are_channels_where_the_file_says_so(way, caplog):
    caplog.set_level(logging.WARNING)
    channels = numbers(5, *SIZE)
    options = {"ome": True} if way == "OME" else {"imagej": True} if way == "ImageJ" else {}
    metadata = {"axes": "CYX"} | ({"Channel": {"Name": list("abcde")}} if way == "OME" else {})
    samples = read_samples(tiff(channels, metadata=metadata, **options))
    assert same(samples, np.moveaxis(channels, 0, -1), names=tuple("abcde") if way == "OME" else ())
    assert not caplog.text


@pytest.mark.parametrize("axes", ["TZCYX", "ZCYX", "TCYX", "CZYX"])
@pytest.mark.parametrize("way", ["OME", "ImageJ", "tifffile"])
def test_of_times_and_slices_the_first_are_read_and_that_is_said(way, axes, caplog):
    if way == "ImageJ" and axes == "CZYX":
        pytest.skip("ImageJ has one order of pages")
    caplog.set_level(logging.WARNING)
    sizes = {"T": 2, "Z": 3, "C": 4, "Y": SIZE[0], "X": SIZE[1]}
    values = numbers(*(sizes[axis] for axis in axes))
    options = {"ome": True} if way == "OME" else {"imagej": True} if way == "ImageJ" else {}
    data = tiff(values, metadata={"axes": axes}, **options)
    first = values[tuple(slice(None) if axis in "CYX" else 0 for axis in axes)]
    assert same(read_samples(data, "a.tif"), np.moveaxis(first, 0, -1))
    for axis, word in (("T", "times"), ("Z", "slices")):
        assert (word in caplog.text) == (axis in axes)


def test_colours_of_several_pages_are_channels_one_after_another():
    values = numbers(2, *SIZE, 3, kind="uint8")
    data = tiff(values, photometric="rgb", metadata={"axes": "CYXS"}, ome=True)
    assert same(read_samples(data), np.concatenate(list(values), -1), is_colour=True)


def test_pages_that_nothing_names_are_refused_and_smaller_ones_left_out(caplog):
    one = numbers(*SIZE)
    assert "3 pages of one size, and nothing says what they are" in refusal(pages(one, one, one))
    assert "3 pages" in refusal(tiff(numbers(3, *SIZE)))
    assert same(read_samples(pages(one, {"data": one[::2, ::2], "subfiletype": 1})), one[..., None])
    assert not caplog.text
    assert same(read_samples(pages(one, one[::2, ::2])), one[..., None])
    assert "different sizes" in caplog.text


def test_sub_images_are_levels_and_a_mask_is_what_is_missing(tmp_path):
    values, hole = numbers(*SIZE, 4), numbers(*SIZE, kind="uint8") > 200
    with tifffile.TiffWriter(tmp_path / "levels.tif") as file:
        file.write(values, photometric="minisblack", planarconfig="contig", subifds=1, metadata=None)
        file.write(values[::2, ::2], photometric="minisblack", planarconfig="contig", subfiletype=1, metadata=None)
    assert same(read_samples((tmp_path / "levels.tif").read_bytes()), values)
    mask = {"data": ~hole, "subfiletype": 4, "photometric": "mask"}
    assert same(read_samples(pages({"data": values, "planarconfig": "contig"}, mask)), values, hole)


def test_descriptions_that_do_not_fit_are_refused_and_name_no_other_file(tmp_path):
    data = tiff(numbers(2, *SIZE), metadata={"axes": "CYX"}, ome=True)
    assert "3 C, and it has 2 pages" in refusal(data.replace(b'SizeC="2"', b'SizeC="3"')).replace("1 T x 1 Z x ", "")
    entities = b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><OME>&b;</OME>'
    assert "declares entities" in refusal(pages(numbers(*SIZE), description=entities))
    swapped = data.replace(b'IFD="0"', b'IFD="9"')
    assert swapped != data and "names page 9" in refusal(swapped) or "names page 10" in refusal(swapped)


def test_pages_that_a_file_leaves_out_are_not_one_channel():
    for options in ({}, {"imagej": True}):
        message = refusal(tiff(numbers(4, *SIZE), metadata={"axes": "CYX"}, truncate=True, **options))
        assert "4 C, and it has 1 pages: expected as many" in message


def test_bands_have_the_names_that_gdal_gives_them():
    def named(*roles):
        item = '<Item name="X" sample="{}" role="{}">{}</Item>'
        text = "".join(item.format(sample, role, name) for sample, role, name in roles)
        tag = (42112, "s", 0, f"<GDALMetadata>{text}</GDALMetadata>", True)
        return read_samples(tiff(numbers(*SIZE, 2), planarconfig="contig", extratags=[tag])).names

    assert named((0, "description", "red"), (1, "description", "nir")) == ("red", "nir")
    assert named((0, "colorinterp", "Red"), (1, "colorinterp", "Blue")) == ("Red", "Blue")
    assert named((0, "description", "red")) == named((0, "colorinterp", "Gray"), (1, "colorinterp", "Blue")) == ()
    assert named((0, "description", "a"), (1, "description", "a")) == ()
    colours = (0, "colorinterp", "Gray"), (1, "colorinterp", "Undefined")
    assert named((0, "description", "gray"), (1, "description", "nir"), *colours) == ("gray", "nir")


def test_names_in_any_letters_are_those_of_a_window_and_of_a_copy_too(tmp_path):
    values, names = numbers(64, 64, 2), ("Grün", "近赤外")
    items = (f'<Item sample="{n}" role="description">{name}</Item>' for n, name in enumerate(names))
    text = f"<GDALMetadata>{''.join(items)}</GDALMetadata>".encode()
    tags = [(GDAL_METADATA, "s", 0, text, True)]
    (tmp_path / "a.tif").write_bytes(tiff(values, planarconfig="contig", tile=(16, 16), extratags=tags))
    window = read_bytes({"file_name": str(tmp_path / "a.tif"), WINDOW: (0, 0, 16, 16)})
    assert same(read_samples(window), values[:16, :16], names=names)
    copy = tiff(values, planarconfig="contig", extratags=tags_to_keep(str(tmp_path / "a.tif")))
    assert same(read_samples(copy), values, names=names)
    assert same(read_samples(tiff_bytes(values, names)), values, names=names)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_upright(orientation):
    values = numbers(*SIZE, 5)
    values[:2, :9, 4] = 0
    tag = [(274, "H", 1, orientation, True)]
    kinds = ["unspecified"] * 3 + ["unassalpha"]
    data = tiff(values, planarconfig="contig", extratags=tag, extrasamples=kinds)
    upright = {
        1: lambda a: a, 2: np.fliplr, 3: lambda a: np.rot90(a, 2), 4: np.flipud, 5: lambda a: a.swapaxes(0, 1),
        6: lambda a: np.rot90(a, -1), 7: lambda a: np.rot90(a, 2).swapaxes(0, 1), 8: np.rot90,
    }[orientation](values)  # fmt: skip
    samples = read_samples(data)
    assert same(samples, upright[..., :4], upright[..., 4] == 0) and (samples.alpha == upright[..., 4]).all()
    assert Picture(data).size == upright.shape[:2]


def test_what_has_no_meaning_here_is_refused_with_what_is_expected():
    assert "CIELAB" in refusal(tiff(numbers(*SIZE, 3, kind="uint8"), photometric="cielab"))
    assert "SEPARATED" in refusal(tiff(numbers(*SIZE, 4, kind="uint8"), photometric="separated"))
    assert "complex64" in refusal(tiff(numbers(*SIZE, kind="float32").astype(np.complex64)))
    assert "gdal_translate" in refusal(tiff(numbers(*SIZE), compression="jpeg2000"))
    deep = tiff(numbers(4, *SIZE, kind="uint8"), volumetric=True, tile=(4, 16, 16), metadata=None)
    assert "4 deep" in refusal(deep)


def test_too_many_pixels_are_refused_before_any_is_decoded():
    side = int(MAX_MEMORY**0.5)
    data = bytearray(tiff(numbers(*SIZE, 4), planarconfig="contig"))
    with tifffile.TiffFile(io.BytesIO(bytes(data))) as file:
        places = [file.pages[0].tags[tag].valueoffset for tag in (256, 257)]
        kinds = [file.pages[0].tags[tag].dtype for tag in (256, 257)]
    for place, kind in zip(places, kinds, strict=True):
        length = {3: 2, 4: 4}[kind]
        data[place : place + length] = side.to_bytes(length, "little")
    with pytest.raises(UnreadableImageError, match=f"{side} x {side} pixels"):
        read_samples(bytes(data))


def test_a_jpeg_in_a_tiff_that_says_to_be_larger_is_not_decoded():
    data = bytearray(tiff(np.full((16, 16, 3), 90, np.uint8), photometric="rgb", compression="jpeg"))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = (65000).to_bytes(2, "big") * 2
    with pytest.raises(UnreadableImageError, match=r"JPEGs of up to \(65000, 65000\) in strips or tiles of \(16, 16\)"):
        read_samples(bytes(data))


def test_a_file_without_its_end_is_not_read():
    for options in ({}, {"compression": "zlib"}, {"rowsperstrip": 4}):
        data = pages({"data": numbers(*SIZE, 4), "planarconfig": "contig"}, **options)
        with pytest.raises(TruncatedImageError):
            read_samples(data[:-50])


@pytest.mark.parametrize("kind", ["uint8", "int16"])
def test_a_file_whose_tags_have_lost_their_values_is_not_read(kind):
    """libtiff writes tags after the samples, and the values of some of them last."""
    data = tiff(numbers(*SIZE, 3, kind=kind), photometric="rgb", metadata=None, compression="zlib")
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        page = file.pages[0]
        own = {code: page.tags[code] for code in (258, 339) if code in page.tags}
    for tag in own.values():
        beyond = bytearray(data)
        at = tag.offset + 8
        beyond[at : at + 4] = (len(data) + 9).to_bytes(4, "little")
        with pytest.raises(TruncatedImageError, match=f"values of tag {tag.code}"):
            read_samples(bytes(beyond))


def test_damaged_files_are_read_or_refused_and_never_hang():
    """What is read has a size that the file has room for: nothing is made up."""
    rng = random.Random(0)
    small = numbers(12, 16, 4)
    whole = [
        tiff(small, planarconfig="contig"),
        tiff(small, planarconfig="contig", compression="lzw", predictor=True),
        tiff(np.moveaxis(small, -1, 0), metadata={"axes": "CYX"}, ome=True, compression="zlib"),
        tiff(small[..., 0], tile=(16, 16), compression="packbits", bigtiff=True),
        tiff((small[..., :3] >> 8).astype(np.uint8), photometric="rgb", compression="jpeg", rowsperstrip=8),
    ]
    read = 0
    for case in range(CASES):
        data = spoil_bytes(whole[case % len(whole)], rng)
        try:
            samples = read_samples(data)
        except UnreadableImageError:
            continue
        read += 1
        assert samples.values.ndim == 3 and samples.values.size <= 50 * 12 * 16 * 4
    assert read > CASES // 20


@pytest.mark.real_data
@pytest.mark.skipif(not NOT_RGB.is_dir(), reason=f"no images in {NOT_RGB}: set REVISIT_REAL_DATA")
def test_real_files_that_are_no_photographs():
    """Of rasterio's tests, of a microscope and of an aeroplane; means are those that GDAL wrote into the files."""
    found = {path.name: read_samples(path.read_bytes()) for path in sorted(NOT_RGB.glob("*/*.[TtPp][IiNn][FfGg]"))}
    shapes = {
        "RGB.byte.tif": (718, 791, 3), "rgb_lzw.tif": (718, 791, 3), "RGBA.uint16.tif": (411, 634, 3),
        "all-nodata.tif": (2475, 71, 4), "alpha.tif": (1223, 1223, 3), "cogeo.tif": (1024, 1024, 3),
        "float.tif": (2, 3, 1), "float_nan.tif": (2, 3, 1), "float_raster_with_nodata.tif": (12, 13, 1),
        "rotated.tif": (15, 10, 1), "shade.tif": (1024, 1024, 1), "OSBS_029.tif": (400, 400, 3),
        "2019_YELL_2_541000_4977000_image_crop.png": (1035, 1249, 3),
    }  # fmt: skip
    shapes |= {f"01_POS{place}_{kind}.TIF": (1006, 1000, 1) for place in ("002", "076") for kind in "DFR"}
    assert {name: samples.values.shape for name, samples in found.items()} == shapes
    missing = {
        "RGB.byte.tif": 184823, "rgb_lzw.tif": 184823, "RGBA.uint16.tif": 133258, "all-nodata.tif": 2475 * 71,
        "alpha.tif": 1472541, "float_nan.tif": 1, "float_raster_with_nodata.tif": 58, "shade.tif": 924201,
        "OSBS_029.tif": 461,
    }  # fmt: skip
    counts = {name: samples.missing.sum() for name, samples in found.items() if samples.missing is not None}
    assert counts == missing
    kinds = {name: samples.values.dtype.name for name, samples in found.items() if samples.values.dtype != np.uint8}
    assert kinds.pop("float.tif") == "float64" and kinds.pop("all-nodata.tif") == kinds.pop("RGBA.uint16.tif")
    assert set(kinds.values()) == {"float32"}
    for name in ("RGB.byte.tif", "OSBS_029.tif"):
        with tifffile.TiffFile(next(NOT_RGB.glob(f"*/{name}"))) as file:
            means = re.findall(r'STATISTICS_MEAN" sample="."[^>]*>([0-9.]+)', file.pages[0].tags[42112].value)
        np.testing.assert_allclose(found[name].values.reshape(-1, 3).mean(axis=0), list(map(float, means)), rtol=1e-9)
    assert (found["RGB.byte.tif"].values == found["rgb_lzw.tif"].values).all()
    assert found["RGBA.uint16.tif"].names == ("Blue", "Green", "Red") and not found["RGBA.uint16.tif"].is_colour
    assert found["all-nodata.tif"].names == ("blue", "green", "red", "nir")
    assert np.unique(found["RGBA.uint16.tif"].alpha).tolist()[0] == 0 and found["cogeo.tif"].alpha is None
    assert found["float.tif"].values.max() == np.float32(1.41) and found["float.tif"].values.min() == np.float32(-1.88)
    for name in ("alpha.tif", "cogeo.tif", "rotated.tif", *(name for name in shapes if name.startswith("01_"))):
        data = next(NOT_RGB.glob(f"*/{name}")).read_bytes()
        by_pil = np.atleast_3d(np.asarray(Image.open(io.BytesIO(data))))
        count = found[name].values.shape[2]
        assert np.abs(found[name].values.astype(int) - by_pil[..., :count]).max() <= 2 * (count > 1), name
