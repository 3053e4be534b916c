"""From samples of any kind to grey levels: as an independent evaluation in float64 has them, or refused in one line."""

import io

import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st

from projects.Pixels.levels import _places, to_levels
from projects.Pixels.samples import Samples
from projects.Pixels.survey import PIXELS, some_pixels
from projects.Pixels.tiff import NODATA
from revisit.data.images.deep_images import format_of
from revisit.data.images.image_bytes import WINDOW, UnreadableImageError
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import read_record
from revisit.errors import UserError


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (("b8", "b4", "b3", "b2"), (3, 2, 1, 0)),
        (("b2", "b3", "b4", "b8a"), (0, 1, 2, 3)),  # by their order, which no name contradicts
        (("1", "2", "3", "4"), (0, 1, 2, 3)),
        (("b8a", "b4", "b3", "b2"), None),
    ],
)
def test_names_of_a_file_are_followed_or_not_contradicted(names, places):
    values = np.arange(4, dtype=np.uint8).reshape(1, 1, 4)
    pixels = PixelFormat(channels=("b2", "b3", "b4", "b8"))
    if places is None:
        with pytest.raises(UnreadableImageError, match="4 channels .b8a b4 b3 b2.: expected 4 .b2 b3 b4 b8."):
            _places(Samples(values, names=names), pixels)
    else:
        assert _places(Samples(values, names=names), pixels) == places


def test_names_that_differ_in_the_size_of_letters_alone_are_different_channels():
    values = np.arange(2, dtype=np.uint8).reshape(1, 1, 2)
    for names in (("t", "T"), ("T", "t")):
        assert _places(Samples(values, names=names), PixelFormat(channels=("t", "T"))) == (
            names.index("t"),
            names.index("T"),
        )
    assert _places(Samples(values, names=("NIR", "Red")), PixelFormat(channels=("red", "nir"))) == (1, 0)
    with pytest.raises(UnreadableImageError, match="2 channels .T x.: expected 2 .t T."):
        _places(Samples(values, names=("T", "x")), PixelFormat(channels=("t", "T")))


@pytest.mark.parametrize("size", [(504, 504), (1020, 1020), (480, 200), (500, 616), (20, 30), (4095, 63)])
def test_pixels_that_are_measured_are_of_all_columns(size):
    height, width = size
    columns = np.broadcast_to(np.arange(width, dtype=np.uint16)[:, None], (height, width, 1))
    measured = some_pixels(Samples(columns), None)
    assert min(PIXELS, height * width) / 3 < len(measured) <= PIXELS
    counts = np.bincount(measured[:, 0], minlength=width)
    assert counts.max() - counts.min() <= 1


KINDS = ("uint8", "uint16", "int16", "int32", "uint32", "float16", "float32", "float64")


def array_of(kind, channels, seed):
    """(9, 11, C) of all values that a kind has, or floats around 0."""
    generator = np.random.default_rng(seed)
    if kind.startswith("float"):
        return (generator.normal(size=(9, 11, channels)) * 10.0 ** generator.integers(-3, 4)).astype(kind)
    limits = np.iinfo(kind)
    return generator.integers(limits.min, limits.max, (9, 11, channels), dtype=kind, endpoint=True)


def expected_levels(values, ranges):
    low, high = np.array(ranges, np.float64).T
    return np.floor((values.astype(np.float64) - low) * 256 / (high - low)).clip(0, 255)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 2, 5, 13, 40])
def test_levels_of_every_kind_are_those_of_float64(kind, channels):
    values = array_of(kind, channels, seed=channels)
    low, high = np.percentile(values.astype(np.float64), (10, 80), axis=0).reshape(2, -1, channels).mean(axis=1)
    ranges = tuple(zip(low.tolist(), (high + 1).tolist(), strict=True))
    pixels = PixelFormat(channels=tuple(map(str, range(channels))), ranges=ranges)
    levels = to_levels(Samples(values), pixels)
    expected = expected_levels(values, ranges)
    assert levels.shape == values.shape and levels.dtype == np.uint8
    assert np.abs(levels - expected).max() <= 1  # where float32 lies on the other side of a step
    assert (levels != expected).mean() < 0.01


def with_faults(values, faults):
    """An array with bands that are constant or without data, and with NaN and infinities where it has floats."""
    values = values.copy()
    if "constant" in faults:
        values[..., 0] = values.flat[0]
    if values.dtype.kind == "f" and "nan" in faults:
        values[:2, :3, -1] = np.nan
    if values.dtype.kind == "f" and "inf" in faults:
        values[4, 4] = np.inf
    if values.dtype.kind == "f" and "all nan" in faults:
        values[:] = np.nan
    return values


def as_file(values, layout):
    data = io.BytesIO()
    if layout == "npy":
        np.save(data, values)
    else:
        planes = None if values.shape[2] == 1 else {"contiguous": "contig", "planar": "separate"}[layout]
        stored = np.moveaxis(values, -1, 0) if planes == "separate" else values.squeeze()
        tifffile.imwrite(data, stored, photometric="minisblack", planarconfig=planes)
    return data.getvalue()


@given(
    st.sampled_from(KINDS),
    st.sampled_from([1, 2, 5, 13, 40]),
    st.sets(st.sampled_from(["constant", "nan", "inf", "all nan"])),
    st.sampled_from(["npy", "contiguous", "planar"]),
    st.integers(0, 2**16),
)
def test_images_of_any_kind_become_what_their_own_values_say_or_are_refused(
    tmp_path_factory, kind, channels, faults, layout, seed
):
    values = with_faults(array_of(kind, channels, seed), faults)
    if layout == "npy":
        values = np.repeat(np.repeat(values, 5, axis=0), 5, axis=1)  # channels are the shortest side
    file = tmp_path_factory.getbasetemp() / f"image.{'npy' if layout == 'npy' else 'tif'}"
    file.write_bytes(as_file(values, layout))
    record = {"file_name": str(file), "case": seed}
    try:
        pixels = format_of({}, [record])
        image = read_record(record, pixels)
    except (UserError, UnreadableImageError) as error:
        assert "\n" not in str(error)
        # What nothing gives a meaning: no pixel has data; or no range of 8 to 16 bits holds the values of one channel.
        is_refusable = "all nan" in faults or (channels == 1 and layout != "npy")
        assert is_refusable, error
        return
    if pixels.is_of_photographs:
        assert channels == 1 and kind in ("uint8", "uint16", "float16", "float32", "float64")
        return
    finite = values.astype(np.float64)
    has_data = np.isfinite(finite).all(axis=2)
    expected = expected_levels(np.where(has_data[..., None], finite, 0), pixels.ranges)
    shown = image if pixels.channels else image[..., :1]
    assert np.abs(shown[has_data] - expected[has_data]).max() <= 1
    assert (shown[~has_data] == np.array(pixels.fill)[: shown.shape[2]]).all()


@pytest.mark.parametrize("record", [{}, {WINDOW: (0, 0, 16, 12)}], ids=["whole", "window"])
@pytest.mark.parametrize(
    ("kind", "mark", "tag", "nodata"),
    [("uint16", 0, "", 0.0), ("uint16", 0, "0", None), ("int16", -9999, "-9999", None), ("float32", np.nan, "", None)],
    ids=["INPUT.NODATA", "GDAL_NODATA", "GDAL_NODATA of no transparency", "NaN"],
)
def test_marks_of_no_data_count_where_transparency_is_a_channel(tmp_path, record, kind, mark, tag, nodata):
    values = np.random.default_rng(0).integers(1000, 2000, (12, 16, 4)).astype(kind)
    values[:4] = mark
    values[6, :, 3] = 0  # infrared of water
    tags = [(NODATA, "s", 0, tag, True)] if tag else []
    names = ("red", "green", "blue", "nir")
    pixels = PixelFormat(channels=names, ranges=((0.0, 2560.0),), nodata=nodata, fill=(99,) * 4)
    images = []
    for extra in ("unspecified", "unassalpha"):
        file = tmp_path / f"{extra}.tif"
        tifffile.imwrite(file, values, photometric="rgb", extrasamples=[extra], extratags=tags, metadata=None)
        images.append(read_record({"file_name": str(file), **record}, pixels))
    assert (images[1][:4] == 99).all() and (images[1][6] != 99).any(axis=1).all()
    np.testing.assert_array_equal(*images)


def premultiplied(path, values, shares, **options):
    """A file of (H, W, C) values times their shares, which it has, too."""
    top = np.iinfo(values.dtype).max if values.dtype.kind == "u" else 1
    stored = np.concatenate([values * (shares / top)[..., None], shares[..., None]], axis=2)
    stored = (stored if values.dtype.kind == "f" else np.rint(stored)).astype(values.dtype)
    if options.get("planarconfig") == "separate":
        stored = np.moveaxis(stored, -1, 0)
    tifffile.imwrite(path, stored, extrasamples=["assocalpha"], metadata=None, **options)
    return path


@pytest.mark.parametrize("record", [{}, {WINDOW: (4, 2, 28, 18)}], ids=["whole", "window"])
@pytest.mark.parametrize("planes", ["contig", "separate"])
@pytest.mark.parametrize("form", [{}, {"compression": "zlib", "tile": (16, 16)}], ids=["plain", "tiles"])
@pytest.mark.parametrize("kind", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("colours", [1, 3])
def test_colours_times_their_transparency_are_the_image_again(tmp_path, record, planes, form, kind, colours):
    rng = np.random.default_rng(0)
    levels, shares = rng.integers(0, 256, (20, 30, colours)), rng.choice([64, 128, 255], (20, 30))
    scale = {"uint8": 1, "uint16": 257, "float32": 1 / 255}[kind]
    photometric = "rgb" if colours == 3 else "minisblack"
    values, shares = (levels * scale).astype(kind), (shares * scale).astype(kind)
    file = premultiplied(tmp_path / "a.tif", values, shares, photometric=photometric, planarconfig=planes, **form)
    expected = levels[2:18, 4:28] if record else levels
    bits = {"uint8": None, "uint16": 16, "float32": 1}[kind]
    formats = [PixelFormat(bits), PixelFormat(bits, ranges=((0.0, 255.0 * scale),))]
    for pixels in formats:
        image = read_record({"file_name": str(file), **record}, pixels)
        assert image.shape == (*expected.shape[:2], 3)
        assert np.abs(image[..., :colours].astype(int) - expected).max() <= 4  # of the lost quarter


@pytest.mark.parametrize("record", [{}, {WINDOW: (0, 0, 16, 12)}], ids=["whole", "window"])
def test_a_channel_that_a_file_calls_transparency_multiplies_no_other(tmp_path, record):
    values = np.random.default_rng(0).integers(0, 256, (12, 16, 4), np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="rgb", extrasamples=["assocalpha"], metadata=None)
    pixels = PixelFormat(channels=("red", "green", "blue", "nir"))
    np.testing.assert_array_equal(read_record({"file_name": str(tmp_path / "a.tif"), **record}, pixels), values)
