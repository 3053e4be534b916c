"""Images of every kind come back whole, upright and RGB, or are refused by name; nothing half-decoded gets through."""

import io
import os
import random
import re
import resource
import struct
import zlib
from collections import Counter
from itertools import islice, product
from pathlib import Path

import cv2
import numpy as np
import pytest
from deep import lay, photograph
from kills import fork
from PIL import Image
from tiny import tiny_config
from trees import refusal, refused, spoil_bytes

from revisit.data.images import deep_images as deep_images_module
from revisit.data.images.deep_images import DeepImages
from revisit.data.images.pixel_format import PHOTOGRAPHS, PixelFormat
from revisit.data.images.reader import UnreadableImageError, read_image, read_size, require_record
from revisit.data.loading.loader import ResumableLoader

NUM_IMAGES = int(os.environ.get("FUZZ_CASES", 200))
ORIENTATION = 0x0112  # the EXIF tag
# EXIF 2.3: where row 0 and column 0 of the stored pixels belong, and the turn that puts them there.
UPRIGHT = {
    1: lambda a: a,  # top, left
    2: lambda a: a[:, ::-1],  # top, right
    3: lambda a: a[::-1, ::-1],  # bottom, right
    4: lambda a: a[::-1],  # bottom, left
    5: lambda a: a.swapaxes(0, 1),  # left, top
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],  # right, top
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],  # right, bottom
    8: lambda a: a.swapaxes(0, 1)[::-1],  # left, bottom
}


def encode(image: Image.Image | np.ndarray, kind: str, **options: object) -> bytes:
    """A file of the kind that a suffix names."""
    buffer = io.BytesIO()
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    image.save(buffer, {"jpg": "JPEG", "tif": "TIFF"}.get(kind, kind.upper()), **options)
    return buffer.getvalue()


def corners(height=32, width=48):
    """Four differently coloured quarters, which survive JPEG within a few grey levels."""
    image = np.zeros((height, width, 3), np.uint8)
    for n, color in enumerate([(200, 60, 60), (60, 180, 60), (70, 70, 200), (190, 190, 60)]):
        y, x = n // 2 * height // 2, n % 2 * width // 2
        image[y : y + height // 2, x : x + width // 2] = color
    return image


def exif_of(orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


@pytest.fixture
def picture(make_picture):
    return make_picture(33, 50)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """One file that the cases write in turn."""
    return tmp_path_factory.mktemp("images") / "photo.jpg"


def read(path, data):
    path.write_bytes(data)
    return read_image(path, PixelFormat(16))


def assert_close(image, reference, levels=0):
    assert image.dtype == np.uint8 and image.shape == reference.shape
    assert np.abs(image.astype(int) - reference).max() <= levels


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 30}])
def test_jpeg_decodes_as_in_pil(path, picture, options):
    for pixels in (picture, picture[..., 0]):
        data = encode(pixels, "jpg", **options)
        assert_close(read(path, data), np.asarray(Image.open(path).convert("RGB")), 2)


def test_cmyk_jpeg_has_the_right_colours(path):
    image = read(path, encode(Image.fromarray(corners()).convert("CMYK"), "jpg", quality=95))
    assert np.asarray(Image.open(path)).shape == (32, 48, 4)
    for quarter in (np.s_[2:14, 2:22], np.s_[2:14, 26:46], np.s_[18:30, 2:22], np.s_[18:30, 26:46]):
        assert_close(image[quarter], corners()[quarter], 5)


@pytest.mark.parametrize("kind", ["png", "bmp", "ppm", "tif", "webp"])
def test_lossless_formats_keep_every_pixel_and_the_content_counts_not_the_suffix(path, picture, kind):
    assert_close(read(path, encode(picture, kind, **({"lossless": True} if kind == "webp" else {}))), picture)
    assert_close(read(path.with_suffix(".png"), encode(picture, "jpg")), read(path, encode(picture, "jpg")))


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["jpg", "webp", "png", "tif"])
def test_an_image_is_upright_and_so_is_the_size_by_its_head(tmp_path, orientation, kind):
    """Of colours and of grey, at every depth that the format has."""
    deep = {"png": {"uint16": 16}, "tif": {"uint16": 16, "float32": 8}}.get(kind, {})
    options = {"jpg": {"quality": 95, "subsampling": 0}, "webp": {"lossless": True}}.get(kind, {})
    for (dtype, bits), bands in product({"uint8": 8, **deep}.items(), (1, 3)):
        pixels, path = corners().astype(dtype)[..., :bands].squeeze(), tmp_path / f"{dtype}{bands}.{kind}"
        if kind in ("png", "tif"):
            stored = pixels * (257 if bits == 16 else 1)
            cv2.imwrite(str(path), stored[..., ::-1] if bands == 3 else stored)
            lay(path, orientation)
        else:
            path.write_bytes(encode(pixels, kind, exif=exif_of(orientation), **options))
        image, whole = read_image(path, PixelFormat(bits)), np.broadcast_to(corners()[..., :bands], (32, 48, 3))
        assert_close(image, UPRIGHT[orientation](whole), {"jpg": 12, "webp": 1}.get(kind, 0))
        assert read_size(path) == {"height": image.shape[0], "width": image.shape[1]}


@pytest.mark.parametrize("like_pil", [False, True])
def test_an_orientation_in_xmp_alone_turns_nothing_for_any_reader(tmp_path, like_pil):
    packet = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    path = tmp_path / "a.jpg"
    Image.new("RGB", (60, 40)).save(path, xmp=packet)
    record = {"file_name": str(path)}
    assert require_record(record, PHOTOGRAPHS, like_pil=like_pil).shape == (40, 60, 3)
    assert read_size(path) == {"height": 40, "width": 60}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("kind", ["H2x", "L"])
def test_all_readers_of_a_jpeg_turn_it_by_odd_exif_alike(tmp_path, orientation, damaged, kind):
    """OpenCV, of the two decoders, forgets the orientation where another tag is damaged, or where it has 32 bits."""
    entries = [struct.pack(">HHL", ORIENTATION, 3 if kind == "H2x" else 4, 1) + struct.pack(f">{kind}", orientation)]
    entries += [struct.pack(">HHLL", 0x010F, 2, 400, 99999)] * damaged  # a text that lies beyond the end
    exif = b"Exif\0\0MM\0*" + struct.pack(">LH", 8, len(entries)) + b"".join(entries) + bytes(4)
    jpeg, path = encode(corners(), "jpg", quality=95, subsampling=0), tmp_path / "a.jpg"
    path.write_bytes(jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:])
    for like_pil in (False, True):
        image = require_record({"file_name": str(path)}, PHOTOGRAPHS, like_pil=like_pil)
        assert_close(image, UPRIGHT[orientation](corners()), 12)
        assert read_size(path) == {"height": image.shape[0], "width": image.shape[1]}


def originals() -> dict[str, bytes]:
    """One file of every kind that folders of images hold, by the name of the kind, whose end is its suffix."""
    y, x = np.mgrid[0:48, 0:64]
    noise = np.random.default_rng(0).integers(0, 20, (48, 64, 3), np.uint8)
    picture = Image.fromarray(np.stack([y * 5, x * 4, (y * x) % 256], axis=-1).astype(np.uint8) // 2 + noise)
    frames = {"save_all": True, "append_images": [picture.rotate(angle) for angle in (90, 180)]}
    palette = picture.quantize(32)
    palette.info["transparency"] = bytes(range(0, 256, 8))
    made = {
        "jpg": (picture, {}),
        "progressive.jpg": (picture, {"progressive": True}),
        "turned.jpg": (picture, {"exif": exif_of(6)}),  # lying on its side
        "cmyk.jpg": (picture.convert("CMYK"), {}),
        "grey.jpg": (picture.convert("L"), {}),
        "png": (picture, {}),
        "16bit.png": ((y * 1000).astype(np.uint16), {}),
        "palette.png": (palette, {}),
        "rgba.png": (picture.convert("RGBA"), {}),
        "1bit.png": (picture.convert("1"), {}),
        "gif": (picture, frames),
        "webp": (picture, {"lossless": True, **frames}),
        "tif": (picture, {"compression": "tiff_lzw"}),
        "16bit.tif": ((x * 900).astype(np.uint16), {}),
        "bmp": (picture, {}),
        "ppm": (picture, {}),
    }
    return {name: encode(image, name.rpartition(".")[2], **options) for name, (image, options) in made.items()}


def with_thumbnail(jpeg: bytes, thumbnail: bytes) -> bytes:
    """The JPEG with an EXIF segment whose second directory points to a complete JPEG."""
    entries = struct.pack(">HHLL", 0x0201, 4, 1, 44) + struct.pack(">HHLL", 0x0202, 4, 1, len(thumbnail))
    first = struct.pack(">HL", 0, 14)  # no entries, next directory at byte 14
    second = struct.pack(">H", 2) + entries + struct.pack(">L", 0)
    exif = b"Exif\0\0" + b"MM\0*" + struct.pack(">L", 8) + first + second + thumbnail
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]


WHOLE = originals()
WHOLE["thumbnail.jpg"] = with_thumbnail(WHOLE["jpg"], encode(Image.new("RGB", (8, 8)), "jpg"))
for name, deep in {
    "colour.png": photograph(),
    "colour.tif": photograph(),
    "float.tif": np.float32(photograph()),
}.items():
    WHOLE[name] = cv2.imencode(f".{name.rpartition('.')[2]}", deep[..., ::-1])[1].tobytes()
JPEGS = [kind for kind in WHOLE if kind.endswith("jpg")]


def is_readable(path: Path) -> bool:
    try:
        image = read_image(path, PixelFormat(16))
    except UnreadableImageError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return False
    assert image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8 and image.size > 0
    return True


def assert_refused(path, data, match=None):
    with pytest.raises(UnreadableImageError, match=match) as error:
        read(path, data)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("kind", WHOLE)
def test_a_truncated_file_is_refused_or_whole(path, kind):
    """Of other files than JPEG that lack only trailing bytes, such as a checksum, all pixels may still be there."""
    data = WHOLE[kind]
    whole, num_refused = read(path, data), 0
    assert whole.shape == ((64, 48, 3) if kind == "turned.jpg" else (48, 64, 3)) and whole.std() > 10
    cuts = [n for n in range(len(data)) if n < 40 or n % 37 == 0 or n >= len(data) - 40]
    for length in cuts:
        path.write_bytes(data[:length])
        if is_readable(path):
            assert np.array_equal(read_image(path, PixelFormat(16)), whole)
        else:
            num_refused += 1
    least = 1 if kind in JPEGS else 0.3 if kind in ("gif", "webp") else 0.7  # what is cut may be another frame
    assert num_refused >= least * len(cuts)


def test_of_several_frames_the_first_is_read_which_is_said_once(path, caplog, monkeypatch):
    monkeypatch.setattr("detectron2.utils.logger._LOG_COUNTER", Counter())
    for kind in ("png", "gif", "gif", "webp"):
        read(path, WHOLE[kind])
    assert caplog.text.count("first one") == 1


@pytest.mark.parametrize("kind", JPEGS)
def test_a_download_filled_up_with_zeros_is_refused(path, kind):
    """OpenCV takes zeros for pixels; a thumbnail's end marker must not count as the image's."""
    half_a_scan = (len(WHOLE[kind]) - WHOLE[kind].rindex(b"\xff\xda")) // 2
    assert_refused(path, WHOLE[kind][:-half_a_scan] + bytes(half_a_scan), match="truncated")


def test_what_is_no_image_or_no_file_is_refused(path, tmp_path):
    magic = b"\xff\xd8\xff"
    for data in (b"", b"This is not a photograph.\n" * 20, magic, bytes(1000), magic + bytes(1000)):
        assert_refused(path, data, match=f"^{re.escape(str(path))}: [^<]*$")
    os.mkfifo(tmp_path / "pipe.jpg")  # would keep its reader waiting for ever
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    with open(tmp_path / "big.jpg", "wb") as file:
        file.truncate(2**40)  # takes no place on the disk
    (tmp_path / "folder.jpg").mkdir()
    for name in ("pipe.jpg", "zero.jpg", "big.jpg", "folder.jpg", "missing.jpg"):
        with pytest.raises(UnreadableImageError, match=f"{name}: (no file of at most {2**30} bytes|.*No such file)"):
            read_image(tmp_path / name)
        assert name == "big.jpg" or name in refusal(read_size, tmp_path / name)


def jpeg_of_claimed_size(height, width):
    start = WHOLE["jpg"].index(b"\xff\xc0")  # marker, length, precision, height, width
    return WHOLE["jpg"][: start + 5] + struct.pack(">HH", height, width) + WHOLE["jpg"][start + 9 :]


def png_of_claimed_size(height, width):
    header = b"IHDR" + struct.pack(">LL", width, height) + WHOLE["png"][24:29]
    return WHOLE["png"][:12] + header + struct.pack(">L", zlib.crc32(header)) + WHOLE["png"][33:]


@pytest.mark.parametrize("claim", [jpeg_of_claimed_size, png_of_claimed_size])
def test_an_absurd_size_is_refused_without_taking_the_memory(path, claim):
    assert read(path, claim(48, 64)).shape == (48, 64, 3)  # sizes are claimed in the right place

    def refuse() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for size in [(60000, 60000), (12000, 12000), (65535, 2050), (8800, 8800)]:
            assert_refused(path, claim(*size), match="pixels")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 100_000  # KiB; the smallest of these would take 390,000 as RGB

    code, output = fork(refuse)  # whose peak starts from what this process has now
    assert code == 0, output


@pytest.mark.fuzz
def test_each_spoilt_image_is_decoded_or_counted_and_the_loaders_workers_survive_them(tmp_path, monkeypatch):
    """A tenth of the files under the suffix of another kind."""
    for number in range(NUM_IMAGES):
        rng = random.Random(number)
        kind = list(WHOLE)[number % len(WHOLE)]
        suffix = rng.choice([*WHOLE]) if rng.random() < 0.1 else kind
        (tmp_path / f"{number:05d}.{suffix.rpartition('.')[2]}").write_bytes(spoil_bytes(WHOLE[kind], rng))
    refused = {str(path) for path in tmp_path.iterdir() if not is_readable(path)}
    assert 0.15 * NUM_IMAGES < len(refused) < 0.85 * NUM_IMAGES
    monkeypatch.setattr("revisit.data.images.reader.MAX_REPLACEMENTS", NUM_IMAGES)
    options = ("SOLVER.IMS_PER_BATCH", 50, "DATALOADER.NUM_WORKERS", 2, "VIEWS.NUM_SMALL", 0, "INPUT.BIT_DEPTH", 16)
    loader = ResumableLoader(tiny_config("DATASETS.TRAIN", (f"folder:{tmp_path}",), *options))
    errors = [error for batch in islice(loader, loader.iterations_per_epoch) for error in batch["read_errors"]]
    assert {error.partition(":")[0] for error in errors} == refused


def test_the_core_alone_refuses_more_than_8_bits(tmp_path, monkeypatch):
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((4, 4), 1000, np.uint16)).save(path)
    monkeypatch.setattr(deep_images_module, "deep_images", DeepImages)
    monkeypatch.setattr("revisit.data.images.reader.deep_images", DeepImages)
    refused(
        "deep.png: more than 8 bits a sample: expected 8, or projects/Pixels",
        require_record,
        {"file_name": path},
        PHOTOGRAPHS,
    )
    assert deep_images_module.pixel_format(tiny_config()) == PHOTOGRAPHS
