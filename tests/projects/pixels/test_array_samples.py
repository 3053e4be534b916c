"""Numpy's files and photographs as samples, each against the array that was written."""

import io
import os
import random
import zipfile
from collections.abc import Callable

import cv2
import numpy as np
import pytest
from PIL import Image
from trees import spoil_bytes

from projects.Pixels.sample_files import read_samples, size_of
from revisit.data.images.deep_images import deep_images
from revisit.data.images.image_bytes import DeepImageError, UnreadableImageError
from revisit.data.images.opening import MAX_MEMORY
from revisit.data.images.reader import require_record
from revisit.data.sources.catalog import get_records

CASES = int(os.environ.get("FUZZ_CASES", 300))


def written(save: Callable, *arrays, **named) -> bytes:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


def picture(values, kind="PNG", **options) -> bytes:
    file = io.BytesIO()
    image = values if isinstance(values, Image.Image) else Image.fromarray(values)
    image.save(file, kind, **options)
    return file.getvalue()


def png16(values) -> bytes:
    """(H, W), or RGB and perhaps transparency."""
    ordered = values[..., [2, 1, 0, 3][: values.shape[2]]] if values.ndim == 3 else values
    return cv2.imencode(".png", ordered)[1].tobytes()


def refusal(data) -> str:
    with pytest.raises(DeepImageError) as error:
        read_samples(data)
    assert "\n" not in str(error.value)
    return str(error.value)


def numbers(*shape, kind="uint16"):
    rng = np.random.default_rng(0)
    floats = kind.startswith((">f", "float"))
    return rng.normal(0, 9, shape).astype(kind) if floats else rng.integers(-99, 99, shape).astype(kind)


@pytest.mark.parametrize("kind", ["uint8", "int16", ">i4", "uint32", "float16", ">f4", "float64"])
@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
def test_arrays_are_height_width_and_channels(save, kind):
    for shape in ((40, 56), (40, 56, 1), (40, 56, 13), (9, 9, 9)):
        values = numbers(*shape, kind=kind)
        for order in "CF":
            data = written(save, np.asarray(values, order=order))
            samples = read_samples(data)
            assert samples.values.dtype == np.dtype(kind).newbyteorder("=") and samples.values.flags.c_contiguous
            np.testing.assert_array_equal(samples.values, np.atleast_3d(values))
            assert samples.missing is samples.alpha is None and not samples.is_colour and samples.names == ()
            assert size_of(data) == shape[:2]


def test_where_an_array_has_no_number_a_pixel_is_missing():
    values = numbers(40, 56, 3, kind="float32")
    values[3, 4, 1], values[5, 6, 0] = np.nan, -np.inf
    missing = read_samples(written(np.save, values)).missing
    assert np.argwhere(missing).tolist() == [[3, 4], [5, 6]]


@pytest.mark.parametrize("save", [np.save, np.savez])
def test_of_an_array_of_bool_what_is_true_is_white(save, tmp_path):
    bits = numbers(40, 56) > 7
    samples = read_samples(written(save, bits))
    assert samples.values.dtype == np.uint8 and (samples.values == 255 * bits[..., None]).all()
    for number in range(3):
        (tmp_path / f"{number}.np{'yz'[save is np.savez]}").write_bytes(written(save, bits))
    records = get_records(f"folder:{tmp_path}")
    pixels = deep_images().format_of(deep_images().find(records))
    assert (require_record(records[0], pixels) == 255 * bits[..., None]).all()


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((5, 40, 56)), "numpy.moveaxis(array, 0, -1)"),
        (np.zeros(7), "(7,): expected (H, W), or (H, W, C)"),
        (np.zeros((1, 4, 5, 6)), "(1, 4, 5, 6)"),
        (np.zeros((4, 5), complex), "an array of complex128 with 2 axes: expected numbers"),
        (np.array([["a", "b"]]), "expected integers or floats"),
        (np.zeros((0, 5)), "expected a pixel at least"),
        (np.zeros((4, 5), np.longdouble), "up to 64 bits"),
    ],
    ids=str,
)
def test_other_arrays_are_refused(array, said):
    with pytest.raises(UnreadableImageError) as error:
        read_samples(written(np.save, array))
    assert said in str(error.value)


def test_of_several_arrays_or_objects_none_is_read():
    assert "2 arrays: expected one" in refusal(written(np.savez, a=np.zeros((4, 5)), b=np.zeros(3)))
    assert "0 arrays" in refusal(b"PK\x03\x04" + b"\0" * 26 + written(lambda file: zipfile.ZipFile(file, "w").close()))
    for save in (np.save, np.savez):
        with pytest.raises(UnreadableImageError, match="array of object"):
            read_samples(written(save, np.array([[{}]])))


def test_a_head_that_lies_is_not_believed():
    side = int(MAX_MEMORY**0.5)
    data = written(np.save, np.zeros((40, 56)))
    for shape in (f"({side}, {side})", "(40, 57)", "(-40, -56)"):
        lying = data.replace(b"(40, 56), }".ljust(25), f"{shape}, }}".encode().ljust(25))
        assert lying != data and len(lying) == len(data)
        with pytest.raises(UnreadableImageError, match="in 17920 bytes"):
            read_samples(lying)
    bomb = written(np.savez_compressed, np.zeros((side, side), np.uint8))
    assert len(bomb) < MAX_MEMORY // 900
    with pytest.raises(UnreadableImageError, match="pixels, and such a file may have"):
        read_samples(bomb)


def test_grey_photographs_are_one_channel_and_colours_three():
    colours = numbers(40, 56, 3, kind="uint8")
    for data in (picture(colours), picture(colours, "BMP"), picture(colours, "WEBP", lossless=True)):
        samples = read_samples(data)
        assert (samples.values == colours).all() and samples.is_colour and samples.alpha is samples.missing is None
    grey = colours[..., 0]
    paletted = Image.fromarray(grey)
    for data in (picture(grey), picture(grey, "BMP"), picture(paletted.convert("P")), picture(grey, "PPM")):
        samples = read_samples(data)
        assert (samples.values == grey[..., None]).all() and not samples.is_colour
    y, x = np.mgrid[0:48, 0:64]
    smooth = np.stack([2 * y, 3 * x, y + x], -1).astype(np.uint8)
    for values in (smooth, smooth[..., 0]):
        samples = read_samples(picture(values, "JPEG", quality=95))
        assert samples.values.shape == np.atleast_3d(values).shape and samples.is_colour == (values.ndim == 3)
        assert np.abs(samples.values.astype(int) - np.atleast_3d(values)).max() < 12


@pytest.mark.parametrize("channels", [2, 4])
def test_transparency_is_kept_beside_the_channels_and_its_zeros_are_missing(channels):
    values = numbers(40, 56, channels, kind="uint8")
    values[:3, :, -1] = 0
    samples = read_samples(picture(values))
    assert (samples.values == values[..., :-1]).all() and (samples.alpha == values[..., -1]).all()
    assert (samples.missing == (values[..., -1] == 0)).all() and samples.is_colour == (channels == 4)


def test_16_bits_stay_numbers_and_their_fourth_channel_is_transparency():
    values = numbers(40, 56, 4)
    values[:3, :, -1] = 0
    assert (read_samples(png16(values[..., 0])).values == values[..., :1]).all()
    samples = read_samples(png16(values[..., :3]))
    assert (samples.values == values[..., :3]).all() and samples.is_colour and samples.alpha is None
    samples = read_samples(png16(values))
    assert (samples.values == values[..., :3]).all() and (samples.alpha == values[..., 3]).all()
    assert (samples.missing == (values[..., 3] == 0)).all()
    with pytest.raises(UnreadableImageError):
        read_samples(png16(values)[:-3000])


def test_a_colour_that_a_png_calls_transparent_is_missing():
    values = numbers(40, 56, kind="uint8")
    samples = read_samples(picture(values, transparency=int(values[3, 4])))
    assert (samples.missing == (values == values[3, 4])).all() and (samples.values[..., 0] == values).all()


def test_photographs_are_upright():
    values = numbers(40, 56, 4, kind="uint8")
    exif = Image.Exif()
    exif[0x0112] = 6
    samples = read_samples(picture(values, exif=exif))
    upright = np.rot90(values, -1)
    assert (samples.values == upright[..., :3]).all() and (samples.alpha == upright[..., 3]).all()


def test_damaged_files_are_read_or_refused():
    rng = random.Random(0)
    small = numbers(12, 16, 3, kind="float32")
    whole = [written(save, small) for save in (np.save, np.savez, np.savez_compressed)]
    whole += [png16(numbers(12, 16, 3)), picture(numbers(12, 16, 4, kind="uint8"))]
    read = 0
    for case in range(CASES):
        try:
            samples = read_samples(spoil_bytes(whole[case % len(whole)], rng))
        except UnreadableImageError:
            continue
        read += 1
        assert samples.values.ndim == 3 and samples.values.size <= 12 * 16 * 4
    assert read > CASES // 50
