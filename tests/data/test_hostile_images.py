"""What is not a whole image is refused with the file's name; nothing half-decoded gets through or ends a worker."""

import io
import os
import random
import resource
import struct
import zlib
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image
from tiny import tiny_config

from revisit.data.loader import ResumableLoader
from revisit.data.reader import UnreadableImageError, read_image

NUM_IMAGES = int(os.environ.get("FUZZ_CASES", 200))


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def originals() -> dict[str, bytes]:
    """One file of every kind that folders of images hold, by the name of the kind, whose end is its suffix."""
    y, x = np.mgrid[0:48, 0:64]
    noise = np.random.default_rng(0).integers(0, 20, (48, 64, 3), np.uint8)
    picture = Image.fromarray(np.stack([y * 5, x * 4, (y * x) % 256], axis=-1).astype(np.uint8) // 2 + noise)
    frames = {"save_all": True, "append_images": [picture.rotate(angle) for angle in (90, 180)]}
    exif = Image.Exif()
    exif[0x0112] = 6  # lying on its side
    palette = picture.quantize(32)
    palette.info["transparency"] = bytes(range(0, 256, 8))
    made = {
        "jpg": (picture, {}),
        "progressive.jpg": (picture, {"progressive": True}),
        "turned.jpg": (picture, {"exif": exif}),
        "cmyk.jpg": (picture.convert("CMYK"), {}),
        "grey.jpg": (picture.convert("L"), {}),
        "png": (picture, {}),
        "16bit.png": (Image.fromarray((y * 1000).astype(np.uint16)), {}),
        "palette.png": (palette, {}),
        "rgba.png": (picture.convert("RGBA"), {}),
        "1bit.png": (picture.convert("1"), {}),
        "gif": (picture, frames),
        "webp": (picture, {"lossless": True, **frames}),
        "tif": (picture, {"compression": "tiff_lzw"}),
        "16bit.tif": (Image.fromarray((x * 900).astype(np.uint16)), {}),
        "bmp": (picture, {}),
        "ppm": (picture, {}),
    }
    names = {kind: kind.rpartition(".")[2].upper() for kind in made}
    kinds = {"JPG": "JPEG", "TIF": "TIFF"}
    return {
        kind: encode(image, kinds.get(names[kind], names[kind]), **options) for kind, (image, options) in made.items()
    }


def with_thumbnail(jpeg: bytes, thumbnail: bytes) -> bytes:
    """The JPEG with an EXIF segment whose second directory points to a complete JPEG."""
    entries = struct.pack(">HHLL", 0x0201, 4, 1, 44) + struct.pack(">HHLL", 0x0202, 4, 1, len(thumbnail))
    first = struct.pack(">HL", 0, 14)  # no entries, next directory at byte 14
    second = struct.pack(">H", 2) + entries + struct.pack(">L", 0)
    exif = b"Exif\0\0" + b"MM\0*" + struct.pack(">L", 8) + first + second + thumbnail
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]


WHOLE = originals()
WHOLE["thumbnail.jpg"] = with_thumbnail(WHOLE["jpg"], encode(Image.new("RGB", (8, 8)), "JPEG"))
by_kind = pytest.mark.parametrize("kind", WHOLE)
JPEGS = [kind for kind in WHOLE if kind.endswith("jpg")]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """One file that the cases write in turn."""
    return tmp_path_factory.mktemp("broken") / "photo.jpg"


def is_readable(path: Path) -> bool:
    try:
        image = read_image(path)
    except UnreadableImageError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return False
    assert image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8 and image.size > 0
    return True


def assert_refused(path, data, match=None):
    path.write_bytes(data)
    with pytest.raises(UnreadableImageError, match=match) as error:
        read_image(path)
    assert str(path) in str(error.value)


@by_kind
def test_every_kind_is_decoded_as_long_as_it_is_whole(path, kind):
    path.write_bytes(WHOLE[kind])
    image = read_image(path)
    assert image.shape == ((64, 48, 3) if kind == "turned.jpg" else (48, 64, 3)) and image.std() > 10


@by_kind
def test_a_truncated_file_is_refused_or_whole(path, kind):
    """Of other files than JPEG that lack only trailing bytes, such as a checksum, all pixels may still be there."""
    data = WHOLE[kind]
    path.write_bytes(data)
    whole, num_refused = read_image(path), 0
    cuts = [n for n in range(len(data)) if n < 40 or n % 37 == 0 or n >= len(data) - 40]
    for length in cuts:
        path.write_bytes(data[:length])
        if is_readable(path):
            assert np.array_equal(read_image(path), whole)
        else:
            num_refused += 1
    least = 1 if kind in JPEGS else 0.3 if kind in ("gif", "webp") else 0.7  # what is cut may be another frame
    assert num_refused >= least * len(cuts)


@pytest.mark.parametrize("kind", JPEGS)
def test_a_download_filled_up_with_zeros_is_refused(path, kind):
    """OpenCV takes zeros for pixels; a thumbnail's end marker must not count as the image's."""
    half_a_scan = (len(WHOLE[kind]) - WHOLE[kind].rindex(b"\xff\xda")) // 2
    assert_refused(path, WHOLE[kind][:-half_a_scan] + bytes(half_a_scan), match="truncated")


def test_a_thumbnail_changes_nothing(path):
    pixels = []
    for kind in ("jpg", "thumbnail.jpg"):
        path.write_bytes(WHOLE[kind])
        pixels.append(read_image(path))
    assert np.array_equal(*pixels)
    with Image.open(path) as image:
        assert image.getexif().get_ifd(ExifTags.IFD.IFD1)  # it is one


@pytest.mark.parametrize(
    "data",
    [b"", b"This is not a photograph.\n" * 20, b"\xff\xd8\xff", bytes(1000), b"\xff\xd8\xff" + bytes(1000)],
    ids=["empty", "text", "magic only", "zeros", "magic and zeros"],
)
def test_what_is_no_image_is_refused(path, data):
    assert_refused(path, data)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")  # would keep its reader waiting for ever
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    with open(tmp_path / "big.jpg", "wb") as file:
        file.truncate(2**40)  # takes no place on the disk
    (tmp_path / "folder.jpg").mkdir()
    for name in ("pipe.jpg", "zero.jpg", "big.jpg", "folder.jpg", "missing.jpg"):
        with pytest.raises(UnreadableImageError, match=f"{name}: (no file of at most {2**30} bytes|.*No such file)"):
            read_image(tmp_path / name)


def jpeg_of_claimed_size(height, width):
    start = WHOLE["jpg"].index(b"\xff\xc0")  # marker, length, precision, height, width
    return WHOLE["jpg"][: start + 5] + struct.pack(">HH", height, width) + WHOLE["jpg"][start + 9 :]


def png_of_claimed_size(height, width):
    header = b"IHDR" + struct.pack(">LL", width, height) + WHOLE["png"][24:29]
    return WHOLE["png"][:12] + header + struct.pack(">L", zlib.crc32(header)) + WHOLE["png"][33:]


@pytest.mark.parametrize("claim", [jpeg_of_claimed_size, png_of_claimed_size])
def test_an_absurd_size_is_refused_without_taking_the_memory(path, claim):
    path.write_bytes(claim(48, 64))
    assert read_image(path).shape == (48, 64, 3)  # sizes are claimed in the right place
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for size in [(60000, 60000), (12000, 12000), (65535, 2050)]:
        assert_refused(path, claim(*size), match="pixels")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000  # KiB; the smallest of these would take 390,000 as RGB


def spoil(data: bytes, rng: random.Random) -> bytes:
    spoilt, size = bytearray(data), len(data)
    match rng.randrange(7):
        case 0:
            return data[: rng.randrange(size)]
        case 1:
            for _ in range(rng.choice([1, 8, 100])):
                spoilt[rng.randrange(size)] ^= 1 << rng.randrange(8)
        case 2:  # headers: sizes, offsets, orientation
            for _ in range(rng.choice([1, 3])):
                spoilt[rng.randrange(min(size, 200))] = rng.choice([0, 1, 127, 128, 255])
        case 3:
            return b""
        case 4:
            start = rng.randrange(size)
            spoilt[start : start + rng.randrange(1, 400)] = bytes(rng.randrange(1, 400))
        case 5:  # two of them in one
            start = rng.randrange(size)
            return data[:start] + data[rng.randrange(size) :]
    return bytes(spoilt)


@pytest.mark.fuzz
def test_each_spoilt_image_is_decoded_or_counted_and_the_loaders_workers_survive_them(tmp_path, monkeypatch):
    """A tenth of the files under the suffix of another kind."""
    for number in range(NUM_IMAGES):
        rng = random.Random(number)
        kind = list(WHOLE)[number % len(WHOLE)]
        suffix = rng.choice([*WHOLE]) if rng.random() < 0.1 else kind
        (tmp_path / f"{number:05d}.{suffix.rpartition('.')[2]}").write_bytes(spoil(WHOLE[kind], rng))
    refused = {str(path) for path in tmp_path.iterdir() if not is_readable(path)}
    assert 0.15 * NUM_IMAGES < len(refused) < 0.85 * NUM_IMAGES
    monkeypatch.setattr("revisit.data.loader.MAX_REPLACEMENTS", NUM_IMAGES)
    options = ("SOLVER.IMS_PER_BATCH", 50, "DATALOADER.NUM_WORKERS", 2, "VIEWS.NUM_SMALL", 0)
    loader = ResumableLoader(tiny_config("DATASETS.TRAIN", (f"folder:{tmp_path}",), *options))
    errors = [error for batch in islice(loader, loader.iterations_per_epoch) for error in batch["read_errors"]]
    assert {error.partition(":")[0] for error in errors} == refused
