"""Values of more than 8 bits arrive as they are: in the range that the data set has, or refused."""

import cv2
import numpy as np
import pytest
import tifffile
from deep import DEPTHS, leave_out, photograph, write_at
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from trees import refusal

from projects.Pixels.grey_levels import find_bits, to_grey_levels
from revisit.data.images.deep_images import DeepImageError
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import UnreadableImageError, read_image, read_record, read_size
from revisit.errors import UserError


def bits_of(*paths):
    found = find_bits([{"file_name": str(path)} for path in paths])
    return found and found[0]


def grey(path, high, **options):
    """A 16-bit file of the values 0 to ``high``."""
    values = np.linspace(0, high, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(values).save(path, **options)
    return path


@given(st.integers(8, 16), st.lists(st.integers(0, 65535), min_size=1, max_size=20), st.booleans())
def test_grey_levels_keep_the_order_and_the_ends_and_what_does_not_fit_is_refused(bits, values, is_float):
    """Of any values: all or nothing."""
    top = 2**bits - 1
    samples = np.array([[0, top, *values]], np.float32 if is_float else np.uint16)
    if max(values) > top:
        with pytest.raises(DeepImageError, match=f"INPUT.BIT_DEPTH {bits} means 0 to {top}"):
            to_grey_levels(samples, bits)
        return
    levels = to_grey_levels(samples, bits)
    assert levels.dtype == np.uint8 and levels[0, 0].tolist() == [0] * 3 and levels[0, 1].tolist() == [255] * 3
    assert np.abs(levels[..., 0] - samples / top * 255).max() <= 1
    assert (np.diff(levels[0, np.argsort(samples[0], kind="stable"), 0].astype(int)) >= 0).all()


@given(st.integers(0, 255), st.integers(8, 16))
def test_an_8_bit_level_survives_every_depth(level, bits):
    value = np.array([[round(level / 255 * (2**bits - 1))]], np.uint16)
    assert to_grey_levels(value, bits)[0, 0, 0] == level


@pytest.mark.parametrize("channels", ["colour", "grey"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_one_photograph_is_the_same_image_at_every_depth(tmp_path, depth, channels):
    pixels = photograph()
    pixels = pixels if channels == "colour" else pixels[..., 1]
    path = write_at(depth, tmp_path / "photo", pixels)
    bits = bits_of(path)
    assert bits == (None if depth == "8" else DEPTHS[depth])
    image, shallow = read_image(path, PixelFormat(bits)), read_image(write_at("8", tmp_path / "shallow", pixels))
    assert np.abs(image.astype(int) - shallow).max() <= 1
    assert abs(image.std() - shallow.std()) < 0.5 and np.ptp(shallow) > 100  # as well spread


def test_a_tiff_of_colours_in_double_precision_is_read(tmp_path):
    pixels = photograph()
    cv2.imwrite(str(tmp_path / "photo.tif"), pixels[..., ::-1] / 65535)
    assert bits_of(tmp_path / "photo.tif") == 1
    assert np.abs(read_image(tmp_path / "photo.tif", PixelFormat(1)).astype(int) - (pixels >> 8)).max() <= 1


@pytest.mark.parametrize(
    "form", [{}, {"compression": "zlib"}, {"rowsperstrip": 7}, {"tile": (16, 16)}, {"byteorder": ">"}]
)
def test_colours_in_planes_are_those_of_the_file(tmp_path, form):
    values = np.random.default_rng(0).integers(0, 4096, (40, 50, 3), np.uint16)
    path, planes = tmp_path / "planes.tif", np.moveaxis(values, 2, 0).copy()
    tifffile.imwrite(path, planes, photometric="rgb", planarconfig="separate", metadata=None, **form)
    assert bits_of(path) == 12
    for _ in range(2):  # what no decoder has filled differs from call to call
        assert np.array_equal(read_image(path, PixelFormat(12)), values >> 4)


def test_a_first_page_that_is_a_smaller_copy_is_refused(tmp_path):
    path = tmp_path / "copy_first.tif"
    with tifffile.TiffWriter(path) as writer:
        writer.write(np.zeros((20, 30, 3), np.uint8), photometric="rgb", subfiletype=1, metadata=None)
        writer.write(np.zeros((200, 300, 3), np.uint8), photometric="rgb", metadata=None)
    for read in (read_image, read_size):
        with pytest.raises((UnreadableImageError, UserError), match="is a smaller copy or a mask: expected the image"):
            read(path)
    names = ("red", "green", "blue")
    assert read_record({"file_name": str(path)}, PixelFormat(channels=names)).shape == (200, 300, 3)


@pytest.mark.parametrize(("high", "bits"), [(3, 8), (255, 8), (256, 9), (1000, 10), (4095, 12), (40000, 16)])
def test_bits_in_use_are_those_of_the_highest_value_among_all_images(tmp_path, high, bits):
    Image.fromarray(np.full((8, 8), 250, np.uint8)).save(tmp_path / "shallow.png")
    dark = grey(tmp_path / "dark.tif", 3)
    assert bits_of(dark, tmp_path / "shallow.png", grey(tmp_path / "bright.png", high)) == bits


def test_white_is_zero_in_deep_files_as_in_shallow_ones(tmp_path):
    for bits, dtype in ((8, np.uint8), (12, np.uint16)):
        values = np.linspace(0, 2**bits - 1, 64).astype(dtype).reshape(8, 8)
        Image.fromarray(values).save(tmp_path / f"{bits}.tif", tiffinfo={262: 0} if bits > 8 else {})
    inverted = read_image(tmp_path / "12.tif", PixelFormat(12))
    assert np.abs(255 - inverted.astype(int) - read_image(tmp_path / "8.tif")).max() <= 1


def test_white_is_zero_in_files_of_12_bits_which_pil_does_not_know(tmp_path):
    values = np.linspace(0, 4095, 64).astype(np.uint16).reshape(8, 8)
    for photometric in ("miniswhite", "minisblack"):
        tifffile.imwrite(tmp_path / f"{photometric}.tif", values, photometric=photometric, bitspersample=12)
    inverted = read_image(tmp_path / "miniswhite.tif", PixelFormat(bits_of(tmp_path / "miniswhite.tif")))
    np.testing.assert_array_equal(255 - inverted, read_image(tmp_path / "minisblack.tif", PixelFormat(12)))


def test_a_pgm_says_itself_what_white_is(tmp_path):
    values = np.linspace(0, 4095, 64).astype(">u2")
    (tmp_path / "a.pgm").write_bytes(b"P5 8 8 4095\n" + values.tobytes())
    assert bits_of(tmp_path / "a.pgm") is None
    assert np.abs(read_image(tmp_path / "a.pgm")[..., 0].ravel() - values / 4095 * 255).max() <= 1


def tif(path, values):
    cv2.imwrite(str(path), values)
    return path


def test_values_without_a_depth_are_refused_in_one_line(tmp_path):
    levels = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    odd, nan = tif(tmp_path / "odd.tif", levels * 1000), tif(tmp_path / "nan.tif", levels * np.nan)
    negative = tif(tmp_path / "negative.tif", (levels * 2000 - 1000).astype(np.int16))
    large = tif(tmp_path / "large.tif", (levels * 70000).astype(np.int32))
    for path in (odd, nan, negative, large):
        assert f"{path} has values from" in refusal(bits_of, path)
    unit = tif(tmp_path / "unit.tif", levels)
    assert "save all as integers" in refusal(bits_of, unit, grey(tmp_path / "deep.png", 4095))
    for path in (odd, nan, negative, large):
        with pytest.raises(UnreadableImageError, match="set it to what the images have"):
            read_image(path, PixelFormat(8))


@pytest.mark.parametrize(("bits", "top"), [(1, 1), (8, 255), (12, 4095)])
def test_each_level_has_an_equal_part_of_the_range_of_floats(bits, top):
    middles = (np.arange(256) + 0.5) / 256 * top
    assert to_grey_levels(middles.astype(np.float32).reshape(4, 64), bits)[..., 1].ravel().tolist() == list(range(256))


def deep_tiff(path, values, **options):
    tifffile.imwrite(path, values, **{"photometric": "minisblack", "metadata": None} | options)
    return path


@pytest.mark.parametrize("compression", ["jpeg2000", "jpegxl", "png"])
@pytest.mark.parametrize("photometric", ["minisblack", "rgb"])
def test_tiffs_of_an_unknown_compression_are_refused_and_never_black(tmp_path, compression, photometric):
    values = np.full((20, 30, 3), 200, np.uint8) if photometric == "rgb" else np.full((20, 30), 200, np.uint8)
    path = deep_tiff(tmp_path / "a.tif", values, photometric=photometric, compression=compression, tile=(16, 16))
    assert bits_of(path) is None
    for bits in (None, 8, 16):
        with pytest.raises(DeepImageError, match="a TIFF of compression .*gdal_translate"):
            read_image(path, PixelFormat(bits))


@pytest.mark.parametrize("planes", ["contig", "separate"])
def test_deep_grey_with_transparency_has_all_its_bits(tmp_path, planes):
    values = np.stack([np.arange(600).reshape(20, 30) * 100, np.full((20, 30), 65535)], -1).astype(np.uint16)
    stored = values if planes == "contig" else np.moveaxis(values, -1, 0)
    path = deep_tiff(tmp_path / "a.tif", stored, planarconfig=planes, extrasamples=["unassalpha"])
    assert bits_of(path) == 16
    np.testing.assert_array_equal(read_image(path, PixelFormat(16))[..., 1], values[..., 0] >> 8)


@pytest.mark.parametrize("kind", ["int16", "int32", "uint32", "float32"])
@pytest.mark.parametrize("compression", [None, "zlib", "lzw", "zstd", "packbits"])
@pytest.mark.parametrize("order", "<>")
def test_numbers_are_the_same_in_both_orders_of_bytes(tmp_path, kind, compression, order):
    levels = np.arange(600).reshape(20, 30) % 256
    values = (levels / 255 if kind == "float32" else levels * 16).astype(kind)
    path = deep_tiff(tmp_path / "a.tif", values, compression=compression, byteorder=order)
    bits = 1 if kind == "float32" else 12
    assert bits_of(path) == bits
    assert np.abs(read_image(path, PixelFormat(bits))[..., 0] - levels).max() <= 1


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_big_tiffs_are_read_in_both_orders_of_bytes(tmp_path, kind, order):
    values = (np.arange(600).reshape(20, 30) % 256).astype(kind)
    path = deep_tiff(tmp_path / "a.tif", values, bigtiff=True, byteorder=order)
    assert read_size(path) == {"height": 20, "width": 30}
    for bits in (8, 16):
        expected = values >> (bits - 8) if kind == "uint16" else values
        np.testing.assert_array_equal(read_image(path, PixelFormat(bits))[..., 2], expected)


@pytest.mark.parametrize("compression", ["zstd", "lzma"])
def test_deep_colours_of_codecs_that_opencv_lacks_are_read(tmp_path, compression):
    values = np.random.default_rng(0).integers(0, 65536, (20, 30, 3), np.uint16)
    path = deep_tiff(tmp_path / "a.tif", values, photometric="rgb", compression=compression, tile=(16, 16))
    np.testing.assert_array_equal(read_image(path, PixelFormat(16)), values >> 8)


@pytest.mark.parametrize("photometric", ["minisblack", "rgb"])
def test_values_below_0_of_8_bits_are_refused_and_never_white(tmp_path, photometric):
    values = np.full((20, 30, 3) if photometric == "rgb" else (20, 30), -1, np.int8)
    with pytest.raises(DeepImageError, match="values from -1 to -1"):
        read_image(deep_tiff(tmp_path / "a.tif", values, photometric=photometric))


@pytest.mark.parametrize("extra", ["unspecified", "unassalpha"])
@pytest.mark.parametrize("bits", [None, 16])
def test_levels_of_8_bits_in_planes_stay_so(tmp_path, extra, bits):
    values = np.random.default_rng(0).integers(0, 256, (20, 30, 4), np.uint8)
    planes = {"photometric": "rgb", "planarconfig": "separate", "extrasamples": [extra]}
    path = deep_tiff(tmp_path / "a.tif", np.moveaxis(values, -1, 0), **planes)
    np.testing.assert_array_equal(read_image(path, PixelFormat(bits)), values[..., :3])


def test_planes_of_cmyk_are_read_as_its_pixels(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (20, 30, 4), np.uint8)
    images = [
        read_image(deep_tiff(tmp_path / f"{planes}.tif", stored, photometric="separated", planarconfig=planes))
        for planes, stored in (("contig", values), ("separate", np.moveaxis(values, -1, 0)))
    ]
    np.testing.assert_array_equal(*images)


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("colours", [1, 3])
def test_tiles_that_a_file_leaves_out_are_black(tmp_path, kind, compression, colours):
    values = np.full((40, 56) if colours == 1 else (40, 56, 3), 200, kind)
    photometric = "rgb" if colours == 3 else "minisblack"
    path = deep_tiff(tmp_path / "a.tif", values, photometric=photometric, compression=compression, tile=(16, 16))
    leave_out(path, [0, 5, 11])
    number = np.arange(40)[:, None] // 16 * 4 + np.arange(56) // 16
    expected = np.where(np.isin(number, [0, 5, 11]), 0, 200)
    np.testing.assert_array_equal(read_image(path, PixelFormat(8)), np.repeat(expected[..., None], 3, axis=2))
