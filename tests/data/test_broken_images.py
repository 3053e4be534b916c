"""What is not a whole image is refused with the file's name; nothing half-decoded gets through."""

import io
import resource
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from revisit.data.reader import UnreadableImageError, read_image


def encode(array, kind, **options):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind, **options)
    return buffer.getvalue()


def gradients():
    y, x = np.mgrid[0:24, 0:40]
    return np.stack([y * 10, x * 6, (y * x) % 256], axis=-1).astype(np.uint8)


def with_thumbnail(jpeg, thumbnail):
    """The JPEG with an EXIF segment whose second directory points to a complete JPEG."""
    entries = struct.pack(">HHLL", 0x0201, 4, 1, 44) + struct.pack(">HHLL", 0x0202, 4, 1, len(thumbnail))
    first = struct.pack(">HL", 0, 14)  # no entries, next directory at byte 14
    second = struct.pack(">H", 2) + entries + struct.pack(">L", 0)
    exif = b"Exif\0\0" + b"MM\0*" + struct.pack(">L", 8) + first + second + thumbnail
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]


BASELINE = encode(gradients(), "JPEG")
JPEGS = {
    "baseline": BASELINE,
    "progressive": encode(gradients(), "JPEG", progressive=True),
    "thumbnail": with_thumbnail(BASELINE, encode(gradients()[::4, ::4], "JPEG")),
}
OTHERS = {
    "png": encode(gradients(), "PNG"),
    "gif": encode(gradients(), "GIF"),
    "bmp": encode(gradients(), "BMP"),
    "webp": encode(gradients(), "WEBP", lossless=True),
    "tif": encode(gradients(), "TIFF", compression="tiff_adobe_deflate"),
    "ppm": encode(gradients(), "PPM"),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """One file that the cases write in turn."""
    return tmp_path_factory.mktemp("broken") / "photo.jpg"


def cuts(data):
    """Lengths to cut to: all near the start and the end, some between."""
    return [n for n in range(len(data)) if n < 40 or n % 11 == 0 or n >= len(data) - 40]


def assert_refused(path, data, match=None):
    path.write_bytes(data)
    with pytest.raises(UnreadableImageError, match=match) as error:
        read_image(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("data", JPEGS.values(), ids=JPEGS)
def test_a_truncated_jpeg_is_refused(path, data):
    path.write_bytes(data)
    assert read_image(path).shape == (24, 40, 3)
    for length in cuts(data):
        assert_refused(path, data[:length])


def test_a_thumbnail_changes_nothing(path):
    pixels = []
    for name in ("baseline", "thumbnail"):
        path.write_bytes(JPEGS[name])
        pixels.append(read_image(path))
    assert np.array_equal(*pixels)
    assert Image.open(io.BytesIO(JPEGS["thumbnail"])).getexif().get_ifd(ExifTags.IFD.IFD1)  # it is one


@pytest.mark.parametrize("data", JPEGS.values(), ids=JPEGS)
def test_a_download_filled_up_with_zeros_is_refused(path, data):
    """OpenCV takes zeros for pixels; a thumbnail's end marker must not count as the image's."""
    half_a_scan = (len(data) - data.rindex(b"\xff\xda")) // 2
    assert_refused(path, data[:-half_a_scan] + bytes(half_a_scan), match="truncated")


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_other_truncated_formats_are_refused_or_whole(path, data):
    """Of a file that lacks only trailing bytes, such as a checksum, all pixels may still be there."""
    path.write_bytes(data)
    whole = read_image(path)
    num_refused = 0
    for length in cuts(data):
        path.write_bytes(data[:length])
        try:
            assert np.array_equal(read_image(path), whole)
        except UnreadableImageError as error:
            assert str(path) in str(error)
            num_refused += 1
    assert num_refused > 0.7 * len(cuts(data))


@settings(derandomize=True, max_examples=150)
@given(st.sampled_from(list((JPEGS | OTHERS).values())), st.data())
def test_damaged_bytes_never_raise_anything_else(path, data, choices):
    damaged = bytearray(data)
    places = st.one_of(st.integers(0, len(data) - 1), st.integers(0, 100))
    for place, value in choices.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=5)):
        damaged[place] = value
    path.write_bytes(damaged)
    try:
        image = read_image(path)
    except UnreadableImageError as error:
        assert str(path) in str(error)
    else:
        assert image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8


@pytest.mark.parametrize(
    "data",
    [b"", b"This is not a photograph.\n" * 20, b"\xff\xd8\xff", bytes(1000), b"\xff\xd8\xff" + bytes(1000)],
    ids=["empty", "text", "magic only", "zeros", "magic and zeros"],
)
def test_what_is_no_image_is_refused(path, data):
    assert_refused(path, data)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UnreadableImageError, match="missing.jpg"):
        read_image(tmp_path / "missing.jpg")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(UnreadableImageError, match=tmp_path.name):
        read_image(tmp_path)


def jpeg_of_claimed_size(height, width):
    start = BASELINE.index(b"\xff\xc0")  # marker, length, precision, height, width
    return BASELINE[: start + 5] + struct.pack(">HH", height, width) + BASELINE[start + 9 :]


def png_of_claimed_size(height, width):
    header = b"IHDR" + struct.pack(">LL", width, height) + OTHERS["png"][24:29]
    return OTHERS["png"][:12] + header + struct.pack(">L", zlib.crc32(header)) + OTHERS["png"][33:]


CLAIMS = {"jpeg": jpeg_of_claimed_size, "png": png_of_claimed_size}
by_format = pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)


@pytest.mark.parametrize("size", [(60000, 60000), (12000, 12000), (65535, 2050)])
@by_format
def test_an_absurd_size_is_refused_without_taking_the_memory(path, claim, size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_refused(path, claim(*size), match="pixels")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000  # KiB; the smallest of these would take 390,000 as RGB


@by_format
def test_claimed_sizes_are_read_from_the_right_place(path, claim):
    path.write_bytes(claim(24, 40))
    assert read_image(path).shape == (24, 40, 3)
