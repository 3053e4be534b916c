"""What a TIFF's tags say of its samples; a decoder's guess drops bands, or takes one of them for grey levels."""

import io
import logging
from collections.abc import Mapping
from typing import Any, BinaryIO

from PIL.TiffImagePlugin import ImageFileDirectory_v2

from revisit.data.images.image_bytes import DeepImageError
from revisit.data.images.opening import TIFF_MAGICS

from detectron2.utils.logger import log_first_n

Tags = Mapping[int, Any]
WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, DESCRIPTION = 256, 257, 258, 259, 262, 270
SAMPLES, PLANES, EXTRA, FORMAT = 277, 284, 338, 339
_PLACES = (273, 324)  # of strips and of tiles
NOT_COMPRESSED = 1
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, CMYK, YCBCR, LAB = 0, 1, 2, 3, 5, 6, 8  # values of PHOTOMETRIC
_KIND, _REDUCED_OR_MASK = 254, 1 | 4  # NewSubfileType, and two of its bits
_COLOURS = {RGB: 3, CMYK: 4, YCBCR: 3, LAB: 3}  # bands, by the photometric tag; of others one
PREMULTIPLIED = 1  # a kind of transparency, by which the other bands are multiplied
ALPHA = (PREMULTIPLIED, 2)  # kinds of further bands that are transparency


def tags_of(file: bytes | BinaryIO) -> ImageFileDirectory_v2:
    """Of the first image in a TIFF, also of one that PIL does not know.

    Raises DeepImageError where that is a smaller copy of another one, or its mask: decoders read the first.
    """
    file = io.BytesIO(file) if isinstance(file, bytes) else file
    head = file.read(16)
    is_big, order = head.startswith(TIFF_MAGICS[2:]), head[:2]
    # PIL finds BigTIFF's number where the low byte is first: the order of bytes is stated apart from it.
    tags = ImageFileDirectory_v2(TIFF_MAGICS[2] + head[4:] if is_big else head[:8], order)
    file.seek(tags.next)
    tags.load(file)
    if tags.next and tags.get(_KIND, 0) & _REDUCED_OR_MASK:
        expected = "the image itself first, so save it again; INPUT.CHANNELS and tiles: read it as it is"
        raise DeepImageError(f"a TIFF whose first page is a smaller copy or a mask: expected {expected}")
    return tags


def lies_in_planes(tags: Tags) -> bool:
    """Whether all values of a band follow one another, which OpenCV takes for those of a pixel."""
    return tags.get(PLANES, 1) == 2 and tags.get(SAMPLES, 1) > 1


def leaves_out_parts(tags: Tags) -> bool:
    """Whether strips or tiles are not there, as GDAL writes where all is 0; PIL takes other bytes for them."""
    return any(0 in tags.get(places, ()) for places in _PLACES)


def is_turned(head: bytes, tags: Tags, mode: str) -> bool:
    """Whether PIL, in such a mode, turns round the bytes of numbers a second time: of compressed ones whose first byte
    is the highest."""
    return head.startswith(b"MM") and tags.get(COMPRESSION, NOT_COMPRESSED) != NOT_COMPRESSED and mode in ("I", "F")


def colours_of(tags: ImageFileDirectory_v2) -> int:
    """How many bands the tags call colours; 1 is grey, or has no meaning."""
    return _COLOURS.get(tags.get(PHOTOMETRIC), 1)


def further_bands(tags: ImageFileDirectory_v2) -> int:
    """How many bands a TIFF has besides its colours and transparency."""
    return tags.get(SAMPLES, 1) - colours_of(tags) - sum(kind in ALPHA for kind in tags.get(EXTRA, ()))


def check_bands(tags: ImageFileDirectory_v2) -> None:
    """Warn once of bands of a TIFF that are read by nobody.

    Raises:
        DeepImageError: several bands, and no tag says that they are colours.
    """
    bands, further = tags.get(SAMPLES, 1), further_bands(tags)
    if further > 0 and colours_of(tags) == 1:
        expected = "1 band, or RGB with photometric tag 2; where networks see them, INPUT.CHANNELS names all"
        raise DeepImageError(f"a TIFF of {bands} bands, which no tag calls colours: expected {expected}")
    if further > 0:
        read = f"are read where INPUT.CHANNELS names all {bands}"
        message = f"TIFFs of {bands} bands: the {further} after the colours, such as infrared, {read}"
        log_first_n(logging.WARNING, message, name=__name__)
