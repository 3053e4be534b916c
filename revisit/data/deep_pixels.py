"""Images with more than 8 bits a sample: which they are, their values, and the grey levels that INPUT.BIT_DEPTH makes.

A ``bit_depth`` of b means that values of 0 to 2**b - 1 become grey levels of 0 to 255: b = 8 .. 16 for integers, or
floats of that range; b = 1 for floats of 0 to 1.
"""

import io
from collections.abc import Mapping, Sequence
from typing import BinaryIO, NamedTuple

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from revisit.data.image_bytes import read_bytes
from revisit.data.records import ask_each, sample
from revisit.errors import UserError
from revisit.keys import declare, one_of

from detectron2.config import CfgNode

JPEG_MAGIC, PNG_MAGIC = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
TIFF_MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_SHALLOW = (JPEG_MAGIC, b"GIF8", b"RIFF", b"BM")  # starts of files that never have more than 8 bits; WebP is a RIFF
_HEADER = 26  # bytes, up to where PNG has its number of bits
_WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC = 256, 257, 258, 262  # tags of TIFF
_WHITE_IS_ZERO = 0  # a value of the photometric tag, as in some X-rays
_MAX_PIXELS = 2**27  # 134 megapixels: beyond any photograph, below what would exhaust a worker's memory
_COLORS = ("RGB", "RGBA", "RGBX")

BIT_DEPTHS = (None, "auto", 1, *range(8, 17))
# None, because of it yacs lets a key become a word or a number.
declare(
    "INPUT.BIT_DEPTH",
    None,
    "Of images with more than 8 bits a sample: values of 0 to 2**BIT_DEPTH - 1 become grey levels of 0 to 255. auto or "
    "None (by the images), 8 to 16, or 1 (floats of 0 to 1).",
    one_of(*BIT_DEPTHS),
)


def bit_depth(cfg: CfgNode) -> int | None:
    """INPUT.BIT_DEPTH as a number; None while it is auto, as it stays where no image has more than 8 bits."""
    value = cfg.INPUT.BIT_DEPTH
    return None if value in (None, "auto") else int(value)


def is_deep(data: bytes, image: Image.Image | None) -> bool:
    """Whether a file has more than 8 bits a sample, by its first 26 bytes and PIL's image, of which a header is enough.

    PIL knows no TIFF of colours in floating point, nor any in float64: of these ``image`` is None.
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
    """The image of open_head. Raises ValueError for too many pixels, OSError for bytes that are no image."""
    image, tags = open_head(io.BytesIO(data))
    check_pixel_count(*stored_size(image, tags))
    return image


def check_pixel_count(height: int, width: int) -> None:
    """Raises ValueError for more than 2**27 pixels."""
    if height * width > _MAX_PIXELS:
        raise ValueError(f"{width} x {height} pixels, more than {_MAX_PIXELS}")


def read_values(data: bytes, image: Image.Image | None) -> np.ndarray:
    """(H, W) or (H, W, 3) RGB integers or floats of a file that ``is_deep``; a TIFF upright, others as stored.

    Raises:
        ValueError, OSError: a damaged file, or one that no decoder knows.
    """
    if image is not None:
        image.load()  # raises where the file is damaged, which OpenCV may leave black
        if image.mode.startswith(("I", "F")):
            return np.asarray(image)
    values = cv2.imdecode(
        np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED
    )  # PIL keeps but the high bytes of colours
    if values is None:
        raise ValueError("neither PIL nor OpenCV can decode it")
    if values.ndim == 3 and values.shape[2] not in (3, 4):
        raise ValueError(f"{values.shape[2]} bands, expected 1, or 3 and perhaps transparency")
    return values[..., 2::-1] if values.ndim == 3 else values


def to_grey_levels(values: np.ndarray, bit_depth: int | None) -> np.ndarray:
    """(H, W, 3) uint8 of values from 0 to 2**bit_depth - 1, which become 0 to 255.

    Raises:
        ValueError: a value outside of that range, or no range.
    """
    low, high = values.min(), values.max()
    if bit_depth is None:
        message = f"more than 8 bits a sample, with values from {low:g} to {high:g}"
        raise ValueError(f"{message}: set INPUT.BIT_DEPTH to what the images have (docs/own-images.md)")
    top = 2**bit_depth - 1
    if not (low >= 0 and high <= top):  # nor is NaN
        message = f"values from {low:g} to {high:g}, and INPUT.BIT_DEPTH {bit_depth} means 0 to {top}"
        raise ValueError(f"{message}: set it to what the images have (docs/own-images.md)")
    if values.dtype.kind != "f" and bit_depth >= 8:
        levels = (values >> (bit_depth - 8)).astype(np.uint8)
    else:  # rounded down too, so that a photograph has the same levels at all depths
        levels = np.minimum(values * np.float32(256 / top), 255).astype(np.uint8)
    return levels if levels.ndim == 3 else np.repeat(levels[..., None], 3, axis=-1)


def decode_deep(data: bytes, image: Image.Image | None, bit_depth: int | None) -> np.ndarray:
    """(H, W, 3) uint8 of a file that ``is_deep``; see read_values and to_grey_levels."""
    white_is_zero = image is not None and image.format == "TIFF" and image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    levels = to_grey_levels(read_values(data, image), bit_depth)
    return 255 - levels if white_is_zero else levels


class BitDepth(NamedTuple):
    """The range that the deep images among some have in common."""

    bits: int  # 8 .. 16, or 1: floats of 0 to 1
    reason: str  # in words


class _Range(NamedTuple):
    """The lowest and the highest value of an image."""

    file_name: str
    is_float: bool
    low: float
    high: float


def find_bit_depth(records: Sequence[dict]) -> BitDepth | None:
    """The fewest bits that hold every value of a sample of the images; None if none has more than 8.

    Of integers 8 .. 16. Of floats 1 if all values lie in 0 to 1, else 8: 0 to 255. Unreadable images do not count.

    Raises:
        UserError: values that none of these holds, or integers beside floats of another range.
    """
    chosen = sample(records)
    deep = [record for record, is_so in zip(chosen, ask_each(_has_deep_file, chosen), strict=True) if is_so]
    ranges = list(filter(None, ask_each(_range_of, deep, "finding INPUT.BIT_DEPTH" if deep else "")))
    if not ranges:
        return None
    bits = {kind: _bits_of([r for r in ranges if r.is_float is kind]) for kind in {r.is_float for r in ranges}}
    if len(set(bits.values())) > 1:
        first = {kind: next(r.file_name for r in ranges if r.is_float is kind) for kind in bits}
        message = f"{first[False]} has integers, and {first[True]} has floats of another range"
        raise UserError(f"{message}: expected images of one kind, so save all as integers")
    highest = max(r.high for r in ranges)
    counts = f"{len(deep)} of {len(chosen)} images looked at have more than 8 bits a sample"
    return BitDepth(bits.popitem()[1], f"{counts}, their highest value is {highest:g}")


def _bits_of(ranges: list[_Range]) -> int:
    """The fewest bits for images that are all of integers, or all of floats."""
    lowest, highest = min(ranges, key=lambda r: r.low), max(ranges, key=lambda r: r.high)
    if lowest.low < 0:
        message = f"{lowest.file_name} has values down to {lowest.low:g}"
        raise UserError(f"{message}: expected 0 and more, so shift them")
    limit, wanted = (255, "floats of 0 to 1 or of 0 to 255") if highest.is_float else (2**16 - 1, "at most 16 bits")
    if highest.high > limit:
        raise UserError(f"{highest.file_name} has values up to {highest.high:g}: expected {wanted}")
    if highest.is_float:
        return 1 if highest.high <= 1 else 8
    return max(8, int(highest.high).bit_length())


def _has_deep_file(record: dict) -> bool:
    """By as few bytes as possible."""
    try:
        head = read_bytes(record, _HEADER)
        if head.startswith(_SHALLOW):
            return False
        return is_deep(head, None if head.startswith(PNG_MAGIC) else open_image(read_bytes(record)))
    except Exception:  # damaged files raise whatever their bytes trip; who reads them whole will say so
        return False


def _range_of(record: dict) -> _Range | None:
    try:
        data = read_bytes(record)
        values = read_values(data, open_image(data))
    except Exception:  # as above
        return None
    low, high, file_name = float(values.min()), float(values.max()), str(record["file_name"])
    if not np.isfinite(low + high):
        raise UserError(f"{file_name} has values that are not finite: expected numbers from 0 on")
    return _Range(file_name, values.dtype.kind == "f", low, high)
