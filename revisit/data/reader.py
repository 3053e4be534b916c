"""Read one image file strictly: the whole image as RGB, or a clear error, never a half-decoded one."""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import cv2
import numpy as np
from PIL import Image, ImageOps

from revisit.errors import UserError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff", ".gif"})

_MAX_PIXELS = 2**27  # 134 megapixels: beyond any photograph, below what would exhaust a worker's memory
MAX_BYTES = 2**30
_JPEG_MAGIC = b"\xff\xd8\xff"


class UnreadableImageError(Exception):
    """A file that does not hold a complete image; the message names the file and says why."""


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


def require_image(file_name: str | os.PathLike[str]) -> np.ndarray:
    """As read_image, where nothing can stand in for the file: raises UserError if it cannot be read."""
    with images_required():
        return read_image(file_name)


@contextmanager
def images_required() -> Iterator[None]:
    """Turns UnreadableImageError into a UserError."""
    try:
        yield
    except UnreadableImageError as error:
        raise UserError(f"unreadable image {error}: expected a complete file, so copy it again") from error


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
            size = (
                int.from_bytes(data[position + 5 : position + 7]),
                int.from_bytes(data[position + 7 : position + 9]),
            )
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
