"""Images with more than 8 bits a sample: which they are, their values, and the grey levels that INPUT.BIT_DEPTH makes.

``bits`` of b mean that values of 0 to 2**b - 1 become grey levels of 0 to 255: b = 8 .. 16 for integers, or
floats of that range; b = 1 for floats of 0 to 1.
"""

import logging

import cv2
import numpy as np
from PIL import Image

from projects.Pixels.samples import straight
from projects.Pixels.tiff import read_tiff
from revisit.data.images.deep_images import DeepImageError, is_deep, open_deep
from revisit.data.images.image_bytes import read_bytes
from revisit.data.images.opening import (
    JPEG_MAGIC,
    PNG_MAGIC,
    check_pixel_count,
    open_image,
    strips,
    taking_turns,
)
from revisit.data.images.pixel_format import COLOURS, PixelFormat
from revisit.data.images.tiff_tags import (
    BITS,
    COMPRESSION,
    EXTRA,
    HEIGHT,
    PALETTE,
    PHOTOMETRIC,
    PREMULTIPLIED,
    SAMPLES,
    WHITE_IS_ZERO,
    WIDTH,
    Tags,
    is_turned,
    lies_in_planes,
    tags_of,
)
from revisit.data.sources.records import Records, ask_each, sample
from revisit.errors import UserError

logger = logging.getLogger(__name__)

# Starts of files that never have more than 8 bits: WebP is a RIFF, and a PGM says what white is.
_SHALLOW = (JPEG_MAGIC, b"GIF8", b"RIFF", b"BM", b"P5", b"P6")
SPREAD = 100_000  # values of an image, for their percentile
NARROW = 10  # the range is so many times what nearly all values fill
_HEADER = 26  # bytes, up to where PNG has its number of bits
_BITS_OF_LEVELS = 8  # of a grey level
_UNKNOWN_TO_OPENCV = (34925, 50000)  # LZMA and ZSTD in TIFFs


def _tags_of_deep(data: bytes) -> Tags:
    """Of the first image of a TIFF; none of a PNG."""
    return {} if data.startswith(PNG_MAGIC) else tags_of(data)


def check_values(image: Image.Image | None, tags: Tags) -> None:
    """Raises ValueError where the values of a file that ``is_deep``, and a copy of them, take too much memory."""
    if tags:
        height, width = tags[HEIGHT], tags[WIDTH]
        bytes_a_pixel = tags.get(BITS, (8,))[0] * tags.get(SAMPLES, 1) // 8
    else:
        height, width, bytes_a_pixel = image.height, image.width, 2 * len(image.getbands())
    check_pixel_count(height, width, 4 + 2 * bytes_a_pixel)


def _read_values(data: bytes, image: Image.Image | None, tags: Tags) -> np.ndarray:
    """(H, W) or (H, W, 3) RGB integers or floats of a file that ``is_deep``; a TIFF upright, others as stored.

    Raises:
        ValueError, OSError: a damaged file, one that no decoder knows, or too many pixels.
    """
    check_values(image, tags)
    if _by_tifffile(data, image, tags):
        return _colours(straight(read_tiff(data)).values)
    if image.mode.startswith(("I", "F")):
        return np.asarray(image)
    values = all_bits(data)
    return _colours(values)[..., ::-1] if values.ndim == 3 else values


def _by_tifffile(data: bytes, image: Image.Image | None, tags: Tags) -> bool:
    """Whether other decoders misread a TIFF: OpenCV gives those that PIL does not know as black where it lacks the
    codec, as 8 bits where they are grey with transparency, planes as pixels, and premultiplied colours as they are; PIL
    turns round the bytes of compressed numbers whose first byte is the highest, a second time."""
    if not tags or image is None or lies_in_planes(tags):
        return bool(tags)
    is_of_colours = not image.mode.startswith(("I", "F"))
    is_beyond_opencv = tags.get(COMPRESSION) in _UNKNOWN_TO_OPENCV or PREMULTIPLIED in tags.get(EXTRA, ())
    return is_turned(data, tags, image.mode) or (is_of_colours and is_beyond_opencv)


def _colours(values: np.ndarray) -> np.ndarray:
    """(H, W, C) of a band of grey, or of three of colours, without a fourth one."""
    if values.shape[2] not in (1, 3, 4):
        raise ValueError(f"{values.shape[2]} bands, expected 1, or 3 and perhaps transparency")
    return values[..., : len(COLOURS)]


def all_bits(data: bytes) -> np.ndarray:
    """By OpenCV, colours as BGR: PIL keeps but the high bytes of these. Raises ValueError for what it cannot decode,
    and what PIL raises for a damaged file, which OpenCV may leave black."""
    open_image(data).load()
    values = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if values is None:
        raise ValueError("neither PIL nor OpenCV can decode it")
    return values


def to_grey_levels(values: np.ndarray, bits: int | None) -> np.ndarray:
    """(H, W, 3) uint8 of values from 0 to 2**bits - 1, which become 0 to 255.

    Raises:
        DeepImageError: a value outside of that range, or no range.
    """
    low, high = values.min(), values.max()
    if bits is None:
        message = f"more than 8 bits a sample, with values from {low:g} to {high:g}"
        raise DeepImageError(f"{message}: set INPUT.BIT_DEPTH to what the images have (docs/tasks/channels.md)")
    top = 2**bits - 1
    if not (low >= 0 and high <= top):  # nor is NaN
        message = f"values from {low:g} to {high:g}, and INPUT.BIT_DEPTH {bits} means 0 to {top}"
        raise DeepImageError(f"{message}: set it to what the images have (docs/tasks/channels.md)")
    levels = np.empty((*values.shape[:2], 3), np.uint8)
    for rows in strips(*levels.shape[:2]):
        part = values[rows] if values.ndim == 3 else values[rows, :, None]
        if values.dtype.kind != "f" and bits >= 8:
            levels[rows] = part >> (bits - 8)
        else:  # rounded down too, so that a photograph has the same levels at all depths
            levels[rows] = np.minimum(part * np.float32(256 / top), 255)
    return levels


def decode_deep(data: bytes, image: Image.Image | None, pixels: PixelFormat) -> np.ndarray:
    """(H, W, 3) uint8 of a file that ``is_deep``; see _read_values and to_grey_levels."""
    tags = _tags_of_deep(data)
    levels = to_grey_levels(_read_values(data, image, tags), few_bits(tags) or pixels.bits)
    is_inverted = tags.get(PHOTOMETRIC) == WHITE_IS_ZERO and not _by_tifffile(data, image, tags)
    return np.subtract(255, levels, out=levels) if is_inverted else levels


def few_bits(tags: Tags) -> int | None:
    """Of a TIFF that has no more than 8 bits a sample: those of its levels."""
    if not tags:
        return None
    bits = max(tags.get(BITS, (1,)))
    if bits > _BITS_OF_LEVELS:
        return None
    return _BITS_OF_LEVELS if tags.get(PHOTOMETRIC) == PALETTE else bits


def find_bits(records: Records) -> tuple[int, str] | None:
    """The fewest bits that hold every value of a sample of the images, and why; None if none has more than 8.

    Of integers 8 .. 16. Of floats 1 if all values lie in 0 to 1, else 8: 0 to 255. Unreadable images do not count.

    Raises:
        UserError: values that none of these holds, or integers among floats.
    """
    chosen = sample(records)
    deep = list(filter(None, ask_each(_range_of_deep, chosen, "looking for more than 8 bits")))
    if not deep:
        return None
    names, floats, _, highs, others = zip(*deep, strict=True)
    if len(set(floats)) > 1:
        message = f"{names[floats.index(False)]} has integers, and {names[floats.index(True)]} has floats"
        raise UserError(f"{message}: expected images of one kind, so save all as integers")
    top, wanted = (255, "floats of 0 to 1 or of 0 to 255") if floats[0] else (2**16 - 1, "0 to at most 16 bits")
    for name, _, low, high, _ in deep:
        if not (low >= 0 and high <= top):  # nor is NaN
            raise UserError(f"{name} has values from {low:g} to {high:g}: expected {wanted} (INPUT.RANGE takes others)")
    high = max(highs)
    bits = (1 if high <= 1 else 8) if floats[0] else max(8, int(high).bit_length())
    counts = f"{len(deep)} of {len(chosen)} images looked at have more than 8 bits a sample"
    if max(others) < high / NARROW:
        dark = f"99 % of their values are at most {max(others):g}, so nearly black next to {high:g}"
        logger.warning(f"{counts}; {dark}: if that is a mark for no data, set INPUT.NODATA {high:g}")
    return bits, f"{counts}, their highest value is {high:g}"


def _range_of_deep(record: dict) -> tuple[str, bool, float, float, float] | None:
    """Of an image with more than 8 bits: its file, whether it has floats, its lowest and its highest value, and what
    99 % of the others do not exceed."""
    try:
        head = read_bytes(record, _HEADER)
        if head.startswith(_SHALLOW) or (head.startswith(PNG_MAGIC) and head[24] != 16):
            return None
        data = read_bytes(record)
        image = open_deep(data)
        if not is_deep(data, image):
            return None
        tags = _tags_of_deep(data)
        if few_bits(tags):
            return None
        with taking_turns(image.height * image.width if image else len(data)):
            values = _read_values(data, image, tags)
    except Exception:  # damaged files raise whatever their bytes trip; who reads them whole will say so
        return None
    low, high = float(values.min()), float(values.max())
    spread = values.ravel()[:: 1 + values.size // SPREAD]
    others = spread[spread < high]
    most = float(np.percentile(others, 99)) if len(others) else high
    return str(record["file_name"]), values.dtype.kind == "f", low, high, most
