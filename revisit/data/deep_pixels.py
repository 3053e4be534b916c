"""Files with more than 8 bits a sample: which they are, the numbers that they hold, and their grey levels."""

import io
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import ImageFileDirectory_v2

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
TIFF_MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# Tags of TIFF.
_WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC, _TOP, _SIGNED_TOP = 256, 257, 258, 262, 281, 341
_WHITE_IS_ZERO = 0
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
    if not data.startswith(TIFF_MAGICS):
        return image is not None and image.mode == "F"
    if image is None:
        return True
    return image.mode.startswith(("I", "F")) or (image.mode in _COLORS and image.tag_v2.get(_BITS, (8,))[0] > 8)


def open_image(data: bytes) -> Image.Image | None:
    """PIL's image, with its header read; None of a TIFF that PIL does not know."""
    try:
        return Image.open(io.BytesIO(data))
    except UnidentifiedImageError:
        if data.startswith(TIFF_MAGICS):
            return None
        raise


def size_of(data: bytes, image: Image.Image | None) -> tuple[int, int]:
    """(height, width) that the header claims, px."""
    if image is not None:
        return image.height, image.width
    file = io.BytesIO(data)
    tags = ImageFileDirectory_v2(file.read(8))
    file.seek(tags.next)
    tags.load(file)
    return tags[_HEIGHT], tags[_WIDTH]


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


def to_grey_levels(samples: Samples, bit_depth: int) -> np.ndarray:
    """(H, W, 3) uint8 of values from 0 to 2**bit_depth - 1, which become 0 to 255.

    Raises:
        ValueError: a value outside of that range.
    """
    values, top = samples.values, 2**bit_depth - 1
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= top):  # nor is NaN
        found = f"values from {low:g} to {high:g}, and INPUT.BIT_DEPTH {bit_depth} means 0 to {top}"
        raise ValueError(f"{found}: set it to what the images have (docs/own-images.md)")
    if values.dtype.kind != "f" and bit_depth >= 8:
        levels = (values >> (bit_depth - 8)).astype(np.uint8)
    else:
        levels = np.rint(values * np.float32(255 / top)).astype(np.uint8)
    if samples.white_is_zero:
        levels = 255 - levels
    return levels if levels.ndim == 3 else np.repeat(levels[..., None], 3, axis=-1)


def _by_opencv(data: bytes) -> np.ndarray:
    """(H, W) or (H, W, 3) RGB, as stored; a TIFF upright."""
    values = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if values is None:
        raise ValueError("neither PIL nor OpenCV can decode it")
    return values[..., 2::-1] if values.ndim == 3 else values


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
