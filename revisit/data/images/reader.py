"""Read an image strictly, wherever a record says that it is: whole and RGB, or a clear error, never half-decoded.

Images with more than 8 bits a sample are a plug-in's to read, by their PixelFormat (deep_images.py).
"""

import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO, NamedTuple, TypeVar

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from revisit.data.images.deep_images import DeepImageError, deep_images, is_deep, open_deep
from revisit.data.images.image_bytes import (
    WINDOW,
    PathLike,
    TruncatedImageError,
    UnreadableImageError,
    read_bytes,
    read_ends,
)
from revisit.data.images.opening import (
    JPEG,
    JPEG_MAGIC,
    PNG_MAGIC,
    PROGRESSIVE_JPEG,
    TIFF_MAGICS,
    check_pixel_count,
    open_image,
    strips,
)
from revisit.data.images.pixel_format import PHOTOGRAPHS, PixelFormat
from revisit.data.images.tiff_tags import HEIGHT, WIDTH, tags_of
from revisit.errors import LostContactError, UserError, first_line

from detectron2.utils.logger import log_first_n

Read = TypeVar("Read")
UNKNOWN_SIZE = {"height": 1, "width": 1}  # px: no labelled box fits in it
MAX_REPLACEMENTS = 20  # images in a row
_ORIENTATION = 0x0112  # the EXIF tag
_EXIF = b"Exif\0\0"
_END_OF_JPEG = b"\xff\xd9"
_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)  # markers of JPEG
LYING = (5, 6, 7, 8)  # orientations whose rows are columns
_FLIPS = {2: 1, 3: -1, 4: 0}  # how OpenCV calls those of the other orientations


class Picture(NamedTuple):
    """An image that is not decoded yet: the bytes of a file, or the array that a record holds."""

    data: bytes | np.ndarray
    name: str = ""  # for messages
    pixels: PixelFormat = PHOTOGRAPHS
    record: dict = {}  # of the data set

    @property
    def is_jpeg(self) -> bool:
        """Whether these are the bytes of a JPEG, which the core reads."""
        is_file = isinstance(self.data, bytes) and self.pixels.is_of_photographs
        return is_file and self.data.startswith(JPEG_MAGIC)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in px, upright; of a file by its head, as PIL reads it. Raises UnreadableImageError."""
        if isinstance(self.data, np.ndarray):
            return self.data.shape[:2]
        with naming(self.name):
            return _upright_size(io.BytesIO(self.data))

    def decode(self, like_pil: bool = False, complete: bool = False) -> np.ndarray:
        """The (H, W, C) uint8 image, upright as its EXIF orientation says: RGB, or the channels of its PixelFormat.

        Args:
            like_pil: have a whole JPEG decoded by PIL, as Detectron2 does: OpenCV differs by a grey level or two.
            complete: take a truncated JPEG too, as OpenCV fills it, unless nothing of it is there. It is logged once.

        Raises:
            TruncatedImageError: a JPEG without its end.
            UnreadableImageError: not an image, too large (opening.py), or with values that its PixelFormat
                does not hold.
        """
        if isinstance(self.data, np.ndarray):
            return self.data
        with naming(self.name):
            if not self.pixels.is_of_photographs:
                return deep_images().read(self.data, self.record, self.pixels)
            if self.is_jpeg:
                try:
                    _check_jpeg(self.data)
                except TruncatedImageError:
                    if not complete:
                        raise
                    return _complete(self.data, self.name)
                if not like_pil:
                    return _decode_by_opencv(self.data)
            return _decode_by_pil(self.data, self.pixels)


def open_record(record: dict, pixels: PixelFormat) -> Picture:
    """The image of a data set's record, not decoded: its ``image``, a part of a shard, or its ``file_name``, of which
    it may be a ``window``.

    Raises:
        UnreadableImageError: see read_bytes.
    """
    if "image" in record:
        return Picture(record["image"], record=record)
    return Picture(read_bytes(record), part_in_words(record), pixels, record)


def part_in_words(record: dict) -> str:
    """The file of a record, and which part of it is the image."""
    place = f", byte {record['offset']}" if "offset" in record else ""
    part = f", window {record[WINDOW]}" if WINDOW in record else place
    return f"{record['file_name']}{part}"


def read_record(record: dict, pixels: PixelFormat, like_pil: bool = False, complete: bool = False) -> np.ndarray:
    """The (H, W, C) uint8 image of a data set's record: see open_record and Picture.decode."""
    return open_record(record, pixels).decode(like_pil=like_pil, complete=complete)


def picture_of(record: dict, pixels: PixelFormat, like_pil: bool = False) -> np.ndarray:
    """The (H, W, 3) uint8 RGB that people are shown of a record's image; see require_record."""
    return pixels.picture(require_record(record, pixels, like_pil))


def require_record(
    record: dict, pixels: PixelFormat, like_pil: bool = False, *, replaceable: bool = False
) -> np.ndarray:
    """As read_record: the image is completed, or raises UserError, unless another one may stand in: ``replaceable``."""
    try:
        return read_record(record, pixels, like_pil, complete=True)
    except UnreadableImageError as error:
        if replaceable:
            raise
        remedy = "" if isinstance(error, DeepImageError) else ": expected a complete file, so copy it again"
        raise UserError(f"unreadable image {error}{remedy}") from error


def without_data(record: dict, pixels: PixelFormat) -> np.ndarray | None:
    """(H, W) bool, where a record's image, which can be read, has no data; None: nowhere."""
    return deep_images().without_data(read_bytes(record), record, pixels)


def read_image(file_name: PathLike, pixels: PixelFormat = PHOTOGRAPHS) -> np.ndarray:
    """As read_record, of a file."""
    return read_record({"file_name": file_name}, pixels)


def read_or_next(records: Sequence[dict], index: int, read: Callable[[dict], Read]) -> tuple[dict, Read, list[str]]:
    """The first record from ``index`` on that ``read`` can read, what it gives, and what is wrong with those before it.

    Raises:
        UnreadableImageError: MAX_REPLACEMENTS in a row cannot be read, or all there are.
    """
    failed = []
    for step in range(min(MAX_REPLACEMENTS, len(records))):
        record = records[(index + step) % len(records)]
        try:
            return record, read(record), failed
        except UnreadableImageError as error:
            failed.append(str(error))
    raise UnreadableImageError(f"{len(failed)} images in a row cannot be read, the first: {failed[0]}")


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Whatever is raised becomes an UnreadableImageError that begins with ``name`` if there is one."""
    start = f"{name}: " if name else ""
    try:
        yield
    except UnreadableImageError as error:
        raise type(error)(f"{start}{error}") from None
    except Exception as error:  # decoders raise whatever damaged bytes trip, struct.error and MemoryError too
        raise UnreadableImageError(f"{start}{first_line(error)}") from error


def _decode_by_opencv(data: bytes) -> np.ndarray:
    # 2.5 times as fast as PIL here, but fills the missing rest of a truncated file with grey. Where a tag of EXIF is
    # damaged, or the orientation of another type, it turns images otherwise than PIL, which says their size.
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None:
        raise UnreadableImageError("OpenCV cannot decode this JPEG")
    return turned(image, _orientation_of_jpeg(data)) if _EXIF in data else image


def _orientation_of_jpeg(data: bytes) -> object:
    """None where PIL does not know the file."""
    with warnings.catch_warnings(action="ignore"), suppress(UnidentifiedImageError):  # as _decode_by_pil
        return orientation_of(open_image(data))
    return None


def _complete(data: bytes, name: str) -> np.ndarray:
    image = _decode_by_opencv(data + _END_OF_JPEG)
    if (image == image[0, 0]).all():
        raise UnreadableImageError("truncated JPEG, of which nothing is there")
    message = f"{name} is a truncated JPEG: what is missing is grey"
    log_first_n(logging.WARNING, message, name=__name__, key="message")
    return image


def _check_jpeg(data: bytes) -> None:
    """Walk the JPEG's segments up to the image data, which must be closed by an end marker.

    Thumbnails lie inside a segment and are skipped with it, so their end markers do not count.
    """
    position, size, bytes_a_pixel = 2, (0, 0), JPEG
    while position + 4 <= len(data):
        if data[position] != 0xFF:
            raise UnreadableImageError("damaged JPEG header")
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            size = tuple(int.from_bytes(data[at : at + 2]) for at in (position + 5, position + 7))
            bytes_a_pixel = PROGRESSIVE_JPEG if marker in _PROGRESSIVE else JPEG
        if marker == 0xDA:
            if 0 in size:
                raise UnreadableImageError("JPEG without a size")
            check_pixel_count(*size, bytes_a_pixel)
            if data.rfind(_END_OF_JPEG, position) < 0:
                raise TruncatedImageError("truncated JPEG")
            return
        position += 2 + int.from_bytes(data[position + 2 : position + 4])
    raise UnreadableImageError("truncated JPEG")


def _decode_by_pil(data: bytes, meaning: PixelFormat) -> np.ndarray:
    with warnings.catch_warnings(action="ignore"):  # PIL warns of odd metadata; only undecodable pixels matter here
        image = open_deep(data)
        pixels = deep_images().decode(data, image, meaning) if is_deep(data, image) else _to_rgb(image)
        with suppress(Exception):  # damage beyond the first frame matters to nobody
            if getattr(image, "is_animated", False):
                message = "images of several frames or pages (GIF, TIFF, WebP) are read as their first one"
                log_first_n(logging.WARNING, message, name=__name__)
        # A TIFF has been turned by its decoder, of which some versions leave the orientation as it was.
        return pixels if image is None or image.format == "TIFF" else turned(pixels, orientation_of(image))


def _to_rgb(image: Image.Image) -> np.ndarray:
    """(H, W, 3) uint8 of an image with 8 bits a sample, or of a PGM, whose header says what white is: 65535."""
    image.load()  # a TIFF turns
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    for rows in strips(*pixels.shape[:2]):
        part = image.crop((0, rows.start, image.width, rows.stop))
        pixels[rows] = np.asarray(part)[..., None] >> 8 if part.mode == "I" else np.asarray(part.convert("RGB"))
    return pixels


def turned(pixels: np.ndarray, orientation: object) -> np.ndarray:
    """Upright: 2 is mirrored, 3 turned around, 4 upside down; 5 to 8 are these and the upright one, transposed."""
    by_opencv = pixels.dtype == np.uint8 and pixels.shape[2:] == (3,)  # in a quarter of the time
    if orientation in LYING:
        pixels = cv2.transpose(pixels) if by_opencv else pixels.swapaxes(0, 1)
        orientation -= 4
    if by_opencv and orientation in _FLIPS:
        return cv2.flip(pixels, _FLIPS[orientation])
    return np.ascontiguousarray(pixels[:: -1 if orientation in (3, 4) else 1, :: -1 if orientation in (2, 3) else 1])


def orientation_of(image: Image.Image) -> object:
    """EXIF's, by which ``turned`` makes an image upright; None where nothing says it. Not XMP's, which OpenCV and
    browsers do not read."""
    for packet in ("xmp", "XML:com.adobe.xmp"):
        image.info.pop(packet, None)  # of which getexif would take it
    try:
        return image.getexif().get(_ORIENTATION)
    except Exception:  # damaged metadata raise whatever their bytes trip; the pixels may be whole
        return None


def _upright_size(file: BinaryIO) -> tuple[int, int]:
    """(height, width) in px, by the head of the file. A TIFF may be too large to be decoded: its windows are not."""
    with warnings.catch_warnings(action="ignore"):  # as _decode_by_pil
        is_tiff = file.read(4) in TIFF_MAGICS
        file.seek(0)
        try:
            height, width, orientation = _size_of_tiff(file) if is_tiff else _size_by_pil(file)
        except UnidentifiedImageError:
            file.seek(0)
            return deep_images().size(file.read())
        return (width, height) if orientation in LYING else (height, width)


def _size_of_tiff(file: BinaryIO) -> tuple[int, int, object]:
    """As stored, and the orientation. Raises UnidentifiedImageError for what only begins as one."""
    tags = tags_of(file)
    if HEIGHT not in tags or WIDTH not in tags:
        raise UnidentifiedImageError("a TIFF without a size")
    return int(tags[HEIGHT]), int(tags[WIDTH]), tags.get(_ORIENTATION)


def _size_by_pil(file: BinaryIO) -> tuple[int, int, object]:
    image = open_image(file)
    return image.height, image.width, orientation_of(image)


def read_size(file_name: PathLike) -> dict[str, int]:
    """``height`` and ``width`` of an image in px, upright as read_image gives it, from the head of its file.

    Raises:
        UserError: no image, or none of a known format.
    """
    try:
        if not os.path.isfile(file_name):  # a pipe would keep its reader waiting
            raise FileNotFoundError("no such file")
        with open(file_name, "rb") as file:
            height, width = _upright_size(file)
    except Exception as error:  # decoders raise whatever damaged bytes trip
        raise UserError(f"{file_name} has no size that can be read ({first_line(error)}): expected an image") from error
    return {"height": height, "width": width}


def is_turned_unseen(file_name: PathLike) -> bool:
    """Whether an image is not upright as it is stored, and has the same size when it is. False of one that cannot be
    read."""
    with warnings.catch_warnings(action="ignore"), suppress(Exception), open(file_name, "rb") as file:  # as read_size
        height, width, orientation = _size_by_pil(file)
        return orientation in _FLIPS or (orientation in LYING and height == width)
    return False


def size_if_known(file_name: PathLike) -> dict[str, int]:
    """As read_size; UNKNOWN_SIZE of an image that cannot be read, which another check counts."""
    try:
        return read_size(file_name)
    except UserError:
        return dict(UNKNOWN_SIZE)


def other_size(record: dict, size: dict[str, int], stated: dict[str, int]) -> str:
    """In words, that a record has ``stated`` another size of its image, ``height`` and ``width`` px, than this one."""
    sizes = " and its annotation ".join("{width} x {height} px".format(**sides) for sides in (size, stated))
    problem = f"{record['file_name']} has {sizes} (width x height, upright as EXIF turns it)"
    return f"{problem}: write the image's size, and its boxes"


def ends_well(record: dict) -> bool:
    """Whether a JPEG or PNG has a sound head and its end. False of what has to be decoded to know."""
    try:
        data = read_ends(record)
        if data.startswith(JPEG_MAGIC):
            _check_jpeg(data)
            return True
        open_image(data)
    except LostContactError:
        raise
    except Exception:  # of whatever damaged bytes trip; who decodes them says what is wrong
        return False
    return data.startswith(PNG_MAGIC) and data[24] < 16 and data.rfind(b"IEND") > 0
