"""The one place where PIL opens a file: which formats, under which suffixes, and how large an image may be."""

import importlib
import io
import os
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError, features

JPEG_MAGIC, PNG_MAGIC = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
TIFF_MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
MAX_MEMORY = 2**29  # bytes that decoding may take
# Bytes a pixel that decoding takes at its highest, as measured: the libraries of some formats hold copies.
JPEG, PROGRESSIVE_JPEG = 7, 12
_OF_FORMAT = {"WEBP": 18, "AVIF": 12, "HEIF": 12}
_OF_OTHERS = 8
_STRIP = 2**20  # px
_LARGE = 2**24  # px
_turn = threading.Lock()


def formats_of_plugins() -> dict[str, str]:
    """Formats, with their suffixes, that PIL reads where it was built so, or by pillow-heif, which is registered."""
    formats = {"AVIF": ".avif"} if "avif" in features.get_supported() else {}
    with suppress(ImportError):  # not installed, or not for this machine
        importlib.import_module("pillow_heif").register_heif_opener()
        formats["HEIF"] = ".heic .heif .hif"
    return formats


# Without those of a plugin that starts a program (EPS: Ghostscript), and those without a magic number, such as TGA,
# which would take damaged bytes for an image.
FORMATS = {
    "JPEG": ".jpg .jpeg .jpe .jfif .jfi .jif .mpo",
    "PNG": ".png",
    "BMP": ".bmp",
    "GIF": ".gif",
    "WEBP": ".webp",
    "PPM": ".ppm .pgm .pbm .pnm",
    "TIFF": ".tif .tiff",
    **formats_of_plugins(),
}
SUFFIXES = frozenset(" ".join(FORMATS.values()).split())


def open_image(file: bytes | BinaryIO | str | os.PathLike[str]) -> Image.Image:
    """PIL's image of a file or its bytes, with no more than its header read, in one of FORMATS.

    Raises:
        PIL.UnidentifiedImageError: no image, or of another format.
        ValueError: too large.
    """
    source = io.BytesIO(file) if isinstance(file, bytes) else file
    try:
        image = Image.open(source, formats=tuple(FORMATS))
    except UnidentifiedImageError as error:
        raise UnidentifiedImageError(f"none of {', '.join(FORMATS)}, or damaged") from error
    of_jpeg = PROGRESSIVE_JPEG if image.info.get("progressive") else JPEG
    is_jpeg = image.format in ("JPEG", "MPO")
    check_pixel_count(image.height, image.width, of_jpeg if is_jpeg else _OF_FORMAT.get(image.format, _OF_OTHERS))
    return image


def check_pixel_count(height: int, width: int, bytes_a_pixel: int) -> None:
    """Raises ValueError where decoding would take more than MAX_MEMORY."""
    most = MAX_MEMORY // bytes_a_pixel
    if height * width > most:
        raise ValueError(f"{width} x {height} pixels, and such a file may have {most:,}: make it smaller, or cut it")


def taking_turns(num_pixels: int) -> AbstractContextManager:
    """To be held by threads while they decode an image of so many pixels: of large ones, one at a time."""
    return _turn if num_pixels > _LARGE else nullcontext()


def strips(height: int, width: int) -> list[slice]:
    """The rows of an image in parts of a megapixel, so that what is made of each takes little memory."""
    rows = max(1, _STRIP // max(1, width))
    return [slice(top, min(top + rows, height)) for top in range(0, height, rows)]
