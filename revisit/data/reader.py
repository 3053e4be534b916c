"""Read an image strictly, wherever a record says that it is: whole and RGB, or a clear error, never half-decoded."""

import functools
import io
import os
import stat
import tarfile
import warnings

import cv2
import fsspec
import numpy as np
from PIL import ExifTags, Image, ImageOps

from revisit.errors import UserError, expect, first_line

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff", ".gif"})

_MAX_PIXELS = 2**27  # 134 megapixels: beyond any photograph, below what would exhaust a worker's memory
MAX_BYTES = 2**30
BLOCK = 512  # bytes, of which a tar file is made: a header, then the member's bytes, filled up
_JPEG_MAGIC = b"\xff\xd8\xff"


class UnreadableImageError(Exception):
    """A file that does not hold a complete image; the message names the file and says why."""


def read_record(record: dict) -> np.ndarray:
    """The (H, W, 3) uint8 RGB image of a data set's record: its ``image``, a part of a shard, or its ``file_name``.

    Raises:
        UnreadableImageError: see read_image and read_sample.
    """
    if "image" in record:
        return record["image"]
    if "offset" in record:
        return decode_image(read_sample(record), f"{record['file_name']}, byte {record['offset']}")
    return read_image(record["file_name"])


def require_record(record: dict) -> np.ndarray:
    """As read_record, where nothing can stand in for the image: raises UserError if it cannot be read."""
    try:
        return read_record(record)
    except UnreadableImageError as error:
        raise UserError(f"unreadable image {error}: expected a complete file, so copy it again") from error


def require_image(file_name: str | os.PathLike[str]) -> np.ndarray:
    """As require_record, of a file."""
    return require_record({"file_name": file_name})


def read_image(file_name: str | os.PathLike[str]) -> np.ndarray:
    """Decode a file into an (H, W, 3) uint8 RGB array, upright as its EXIF orientation says.

    Raises:
        UnreadableImageError: missing, no regular file, truncated, not an image, or larger than 2**27 pixels or 2**30
            bytes.
    """
    try:
        status = os.stat(file_name)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:  # a pipe would keep its reader waiting
            raise UnreadableImageError(f"{file_name}: no file of at most {MAX_BYTES} bytes")
        with open(file_name, "rb") as file:
            data = file.read()
    except OSError as error:
        raise UnreadableImageError(f"{file_name}: {error}") from error
    return decode_image(data, str(file_name))


def decode_image(data: bytes, name: str) -> np.ndarray:
    """As read_image, from the bytes of a file; ``name`` is for the message."""
    try:
        return _decode_jpeg(data) if data.startswith(_JPEG_MAGIC) else _decode_other(data)
    except UnreadableImageError as error:
        raise UnreadableImageError(f"{name}: {error}") from None
    except Exception as error:  # decoders raise whatever damaged bytes trip, struct.error and MemoryError too
        raise UnreadableImageError(f"{name}: {' '.join(str(error).split()) or type(error).__name__}") from error


def read_sample(record: dict) -> bytes:
    """The bytes of an image, by its record.

    Raises:
        UnreadableImageError: the shard cannot be read, ends before, or has something else in that place.
    """
    file_name, offset, size = record["file_name"], record["offset"], record["size"]
    where = f"{file_name}, byte {offset}"
    if size > MAX_BYTES:
        raise UnreadableImageError(f"{where}: {size} bytes, more than {MAX_BYTES}")
    try:
        data = _read(file_name, offset - BLOCK, offset + size)
    except Exception as error:  # packages of remote stores have errors of their own
        raise UnreadableImageError(f"{where}: {type(error).__name__} {error}") from error
    if len(data) != BLOCK + size:
        raise UnreadableImageError(f"{where}: the shard ends before the image does")
    try:
        header = tarfile.TarInfo.frombuf(data[:BLOCK], tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError as error:
        raise UnreadableImageError(f"{where}: no file starts here ({error}), so the index is another's") from error
    if header.size != size:
        raise UnreadableImageError(f"{where}: a file of {header.size} bytes, {size} by the index, which is another's")
    return data[BLOCK:]


def _read(file_name: str, start: int, end: int) -> bytes:
    if "://" not in file_name:  # without fsspec's own steps, which small images notice
        with open(file_name, "rb", buffering=0) as file:
            file.seek(start)
            return file.read(end - start)
    filesystem, path = _filesystem(file_name, os.getpid())
    return filesystem.cat_file(path, start=start, end=end)


@functools.lru_cache(maxsize=4096)
def _filesystem(file_name: str, process: int) -> tuple[fsspec.AbstractFileSystem, str]:
    # By process: what talks to a server must not be carried into a forked worker.
    return fsspec.url_to_fs(file_name)


def _decode_jpeg(data: bytes) -> np.ndarray:
    # OpenCV is 2.5 times as fast as PIL here, but fills the missing rest of a truncated file with grey.
    height, width = _check_jpeg_is_complete(data)
    if height * width > _MAX_PIXELS:
        raise UnreadableImageError(f"{width} x {height} pixels, more than {_MAX_PIXELS}")
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    if image is None:
        raise UnreadableImageError("OpenCV cannot decode this JPEG")
    return image


def _check_jpeg_is_complete(data: bytes) -> tuple[int, int]:
    """Walk the JPEG's segments up to the image data, which must be closed by an end marker.

    Thumbnails lie inside a segment and are skipped with it, so their end markers do not count.
    Returns the image's (height, width).
    """
    position, size = 2, (0, 0)
    while position + 4 <= len(data):
        if data[position] != 0xFF:
            raise UnreadableImageError("damaged JPEG header")
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            size = tuple(int.from_bytes(data[at : at + 2]) for at in (position + 5, position + 7))
        if marker == 0xDA:
            if data.rfind(b"\xff\xd9", position) < 0:
                raise UnreadableImageError("truncated JPEG")
            return size
        position += 2 + int.from_bytes(data[position + 2 : position + 4])
    raise UnreadableImageError("truncated JPEG")


def _decode_other(data: bytes) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL warns of odd metadata; only undecodable pixels matter here
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise UnreadableImageError(f"{image.width} x {image.height} pixels, more than {_MAX_PIXELS}")
            is_16_bit = image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PNG")
            upright = ImageOps.exif_transpose(image)
            if is_16_bit:  # PIL's convert would clip at 255 instead of scaling: a white image
                return np.stack([(np.asarray(upright) >> 8).astype(np.uint8)] * 3, axis=-1)
            return np.array(upright.convert("RGB"))


def read_size(file_name: str | os.PathLike[str]) -> dict[str, int]:
    """``height`` and ``width`` of an image in px, upright as read_image gives it, from the head of its file.

    Raises:
        UserError: no image, or none of a known format.
    """
    try:
        expect(stat.S_ISREG(os.stat(file_name).st_mode), f"{file_name} is no file: expected an image")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as _decode_other
            with Image.open(file_name) as image:
                height, width = image.height, image.width
                lies = image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
    except UserError:
        raise
    except Exception as error:  # decoders raise whatever damaged bytes trip
        raise UserError(f"{file_name} has no size that can be read ({first_line(error)}): expected an image") from error
    return {"height": width, "width": height} if lies else {"height": height, "width": width}
