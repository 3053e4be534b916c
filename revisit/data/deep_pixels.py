"""Files with more than 8 bits a sample: which they are, the numbers that they hold, and their grey levels."""

import io
import struct
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NamedTuple

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import ImageFileDirectory_v2

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
TIFF_MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# Tags of TIFF.
_WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC, _TOP, _SIGNED_TOP = 256, 257, 258, 262, 281, 341
_WHITE_IS_ZERO = 0
_MAX_PIXELS = 2**27  # 134 megapixels: beyond any photograph, below what would exhaust a worker's memory
_COLORS = ("RGB", "RGBA", "RGBX")


class Samples(NamedTuple):
    """What a deep file holds, as its EXIF orientation leaves it."""

    values: np.ndarray  # (H, W) or (H, W, 3) RGB, integers or floats
    declared: int | None  # bits that the file says its values have
    white_is_zero: bool = False  # as in some X-rays


def is_deep(data: bytes, image: Image.Image | None) -> bool:
    """Whether a file has more than 8 bits a sample, by its first 26 bytes and what PIL makes of it.

    PIL knows no TIFF of colours in floating point, nor any in float64: there ``image`` is None.
    """
    if data.startswith(PNG_MAGIC):
        return data[24] == 16
    if image is None:
        return data.startswith(TIFF_MAGICS)
    if image.format == "TIFF" and image.mode in _COLORS:
        return image.tag_v2.get(_BITS, (8,))[0] > 8
    # The header of a PGM says what white is, and PIL has made that 65535.
    return image.mode.startswith(("I", "F")) and (image.mode, image.format) != ("I", "PPM")


def open_head(file: BinaryIO) -> tuple[Image.Image | None, Mapping[int, object]]:
    """PIL's image, with its header read, or None of a TIFF that PIL does not know; and a TIFF's tags.

    Raises:
        OSError: no image.
    """
    try:
        image = Image.open(file)
    except UnidentifiedImageError:
        file.seek(0)
        start = file.read(8)
        if not start.startswith(TIFF_MAGICS):
            raise
        tags = ImageFileDirectory_v2(start)
        file.seek(tags.next)
        tags.load(file)
        return None, tags
    return image, image.tag_v2 if image.format == "TIFF" else {}


def stored_size(image: Image.Image | None, tags: Mapping[int, object]) -> tuple[int, int]:
    """(height, width) in px before any turn, of what open_head gives; PIL turns a TIFF's, from some version on."""
    return (tags[_HEIGHT], tags[_WIDTH]) if tags else (image.height, image.width)


def open_image(data: bytes) -> Image.Image | None:
    """The image of open_head. Raises ValueError for too many pixels, OSError where there is no image."""
    image, tags = open_head(io.BytesIO(data))
    check_pixel_count(*stored_size(image, tags))
    return image


def check_pixel_count(height: int, width: int) -> None:
    """Raises ValueError for more than 2**27 pixels."""
    if height * width > _MAX_PIXELS:
        raise ValueError(f"{width} x {height} pixels, more than {_MAX_PIXELS}")


def read_samples(data: bytes, image: Image.Image | None) -> Samples:
    """The values of a file that ``is_deep``; not yet turned upright where PNG asks for it.

    Raises:
        ValueError, OSError: a damaged file, or one that no decoder knows.
    """
    if image is None:
        return Samples(_by_opencv(data), None)
    tags = image.tag_v2 if image.format == "TIFF" else {}
    declared = _declared_by_png(data) if image.format == "PNG" else _declared_by_tiff(tags)
    inverted = tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    image.load()  # raises where the file is damaged, which OpenCV may leave black
    # PIL keeps but the high bytes of colours.
    values = np.asarray(image) if image.mode.startswith(("I", "F")) else _by_opencv(data)
    return Samples(values, declared, inverted)


def to_grey_levels(samples: Samples, bit_depth: int | None) -> np.ndarray:
    """(H, W, 3) uint8 of values from 0 to 2**bit_depth - 1, which become 0 to 255.

    Raises:
        ValueError: a value outside of that range, or nothing that says what the range is.
    """
    values = samples.values
    low, high = values.min(), values.max()
    if bit_depth is None:
        found = f"more than 8 bits a sample, with values from {low:g} to {high:g}"
        raise ValueError(f"{found}: set INPUT.BIT_DEPTH to what the images have (docs/own-images.md)")
    top = 2**bit_depth - 1
    if not (low >= 0 and high <= top):  # nor is NaN
        found = f"values from {low:g} to {high:g}, and INPUT.BIT_DEPTH {bit_depth} means 0 to {top}"
        raise ValueError(f"{found}: set it to what the images have (docs/own-images.md)")
    if values.dtype.kind != "f" and bit_depth >= 8:
        levels = (values >> (bit_depth - 8)).astype(np.uint8)
    else:  # rounded down too, so that a photograph has the same levels at all depths
        levels = np.minimum(values * np.float32(256 / top), 255).astype(np.uint8)
    if samples.white_is_zero:
        levels = 255 - levels
    return levels if levels.ndim == 3 else np.repeat(levels[..., None], 3, axis=-1)


def _by_opencv(data: bytes) -> np.ndarray:
    """(H, W) or (H, W, 3) RGB, as stored; a TIFF upright."""
    values = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if values is None:
        raise ValueError("neither PIL nor OpenCV can decode it")
    if values.ndim == 2:
        return values
    if values.shape[2] not in (3, 4):
        raise ValueError(f"{values.shape[2]} bands, expected 1, or 3 and perhaps transparency")
    return values[..., 2::-1]


def _declared_by_tiff(tags: Mapping[int, object]) -> int | None:
    """By the tags of the highest value, or by a number of bits that is none of a machine's words."""
    tops = [value for tag in (_TOP, _SIGNED_TOP) for value in np.atleast_1d(tags.get(tag, ()))]
    bits = tags.get(_BITS, (16,))[0]
    if tops and max(tops) >= 1:
        return int(max(tops)).bit_length()
    return bits if 8 < bits < 16 else None


def _declared_by_png(data: bytes) -> int | None:
    """By the chunk of significant bits."""
    for kind, content in _chunks(data):
        if kind == b"sBIT" and content:
            return max(content)
        if kind == b"IDAT":
            break
    return None


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = len(PNG_MAGIC)
    while position + 8 <= len(data):
        size, kind = struct.unpack(">L4s", data[position : position + 8])
        yield kind, data[position + 8 : position + 8 + size]
        position += size + 12
