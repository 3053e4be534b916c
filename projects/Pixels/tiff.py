"""TIFFs by their tags: which samples are channels, which pages belong to one image, what is no data.

tifffile, with imagecodecs, decodes strips and tiles; what they mean is decided here.
"""

import io
import logging
import math
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice

import numpy as np

from projects.Pixels.jpeg_header import jpeg_size
from projects.Pixels.samples import Samples, Scan, with_missing
from projects.Pixels.tiff_descriptions import Planes, names_of_bands, stated_planes
from revisit.data.images.image_bytes import (
    DeepImageError,
    TruncatedImageError,
    UnreadableImageError,
    Window,
    first_bytes,
)
from revisit.data.images.opening import MAX_MEMORY, TIFF_MAGICS, check_pixel_count
from revisit.data.images.pixel_format import COLOURS
from revisit.data.images.reader import turned
from revisit.data.images.tiff_tags import (
    ALPHA,
    BITS,
    BLACK_IS_ZERO,
    EXTRA,
    FORMAT,
    PALETTE,
    PHOTOMETRIC,
    PLANES,
    PREMULTIPLIED,
    RGB,
    SAMPLES,
    WHITE_IS_ZERO,
    YCBCR,
)

from detectron2.utils.logger import log_first_n

try:
    import imagecodecs  # noqa: F401  # decodes what is compressed
    import tifffile
    from tifffile import TiffPage
except ImportError:  # said where a TIFF is to be read
    tifffile = None

ORIENTATION, GDAL_METADATA, NODATA = 274, 42112, 42113
OF_PLACE = (33550, 33922, 34264, 34735, 34736, 34737)  # GeoTIFF's: scale, tie points, affine map, keys
_OF_SAMPLES = (BITS, PHOTOMETRIC, SAMPLES, PLANES, 317, 320, EXTRA, FORMAT, NODATA)  # predictor and palette, too
MOST_PAGES = 4096
_REDUCED, MASK = 1, 4  # bits of NewSubfileType
_COLOURS = {WHITE_IS_ZERO: 1, BLACK_IS_ZERO: 1, RGB: 3, PALETTE: 1, YCBCR: 3}  # samples
_JPEG = 7
_COPIES = 3  # of the samples, while they are decoded
_TILED = "save it in tiles, such as by gdal_translate -co TILED=YES -co COMPRESS=DEFLATE"
# Their decoders write no more than a strip or a tile has, whatever its bytes say; of JPEG see _check_jpeg.
_COMPRESSIONS = {
    1: "none",
    5: "LZW",
    8: "deflate",
    32946: "deflate",
    32773: "PackBits",
    34925: "LZMA",
    50000: "ZSTD",
    _JPEG: "JPEG",
}
_CONVERT = "convert it, such as by gdal_translate -co COMPRESS=DEFLATE"


class UnknownCompressionError(DeepImageError):
    """A TIFF that another library may decode."""


def read_tiff(source: bytes | str, name: str = "", window: Window | None = None) -> Samples:
    """Of the image of full resolution in a TIFF: its samples, or those of the pages that it calls channels.

    - What OME, ImageJ or tifffile call z or time is read at its first place, which is logged once. Pages of one shape
      that nothing names are refused. Reduced levels are not read, and masks (GDAL's) are ``marked``.
    - Samples after the colours are channels, but ExtraSamples 1 and 2, which are ``alpha``; by 1 the others are
      multiplied, see ``straight``.
    - A palette of greys is one channel of its levels, another one RGB. Where white is 0, grey is inverted.
    - The mark of GDAL_NODATA says of a pixel that it is missing where all its channels have it, as rasterio's
      dataset_mask: 0 and 255 are in one channel of many a pixel that is there. NaN says so in any channel.

    Args:
        source: the bytes, or the path of a file.
        window: of the image alone these pixels, for which no other strips and tiles are read.

    Raises:
        DeepImageError: what no tag gives a meaning.
        TruncatedImageError: bytes that it names are not there.
        Exception: whatever damaged bytes trip.
    """
    with opened(source) as file:
        pages, whole = _pages(file)
        planes = _planes_of_image(whole, name)
        channels = [whole[place] for place in planes.places]
        _check(channels, window)
        samples = _samples(channels, planes.names, window)
        mask = _mask_of(pages, whole[0])
        if mask is not None:
            _check_page(mask, window)
            samples = with_missing(samples, _stored(mask, window)[..., 0] == 0)
        return samples.changed(partial(turned, orientation=whole[0].tags.valueof(ORIENTATION)))


def tiff_head(file_name: str) -> Scan:
    """Of a file, of which no image is read. Raises DeepImageError for one whose windows cannot be read."""
    with opened(file_name) as file:
        pages, (page, *_) = _pages(file)
        _check_colours(page)
        _check_windows(page)
        is_marked = bool(_text(page, NODATA)) or page.dtype is None or page.dtype.kind == "f"
        has_mask = _place_of_alpha(page) is not None or _mask_of(pages, page) is not None
        return Scan(page.imagelength, page.imagewidth, is_marked or has_mask)


def stored_samples(file_name: str, window: Window) -> np.ndarray:
    """(h, w, S) of a window of a TIFF's first page of full resolution, whatever its colours say. Raises as
    ``read_tiff``."""
    with opened(file_name) as file:
        _, (page, *_) = _pages(file)
        _check([page], window)
        return _stored(page, window)


def tags_to_keep(file_name: str) -> list[tuple]:
    """Of a TIFF, as tifffile writes them: where the image lies, what GDAL says of it, and its mark of no data where
    samples are those of the file and no mask says more; of another file none."""
    if not first_bytes(file_name).startswith(TIFF_MAGICS):
        return []
    with opened(file_name) as file:
        pages, (page, *_) = _pages(file)
        says_all = page.photometric in (BLACK_IS_ZERO, RGB) and _mask_of(pages, page) is None
        return tags_as_written(page, (*OF_PLACE, GDAL_METADATA, *[NODATA] * says_all))


def tags_as_written(page: "TiffPage", codes: Iterable[int]) -> list[tuple]:
    """Those of these tags that a page has, as tifffile writes them."""
    kept = [tag for tag in map(page.tags.get, codes) if tag is not None]
    values = [tag.value.encode() if isinstance(tag.value, str) else tag.value for tag in kept]  # GDAL's are of UTF-8
    return [(tag.code, int(tag.dtype), tag.count, value, True) for tag, value in zip(kept, values, strict=True)]


def _pages(file: "tifffile.TiffFile") -> tuple[list["TiffPage"], list["TiffPage"]]:
    """All, and those of full resolution, at least one."""
    pages = list(islice(file.pages, MOST_PAGES + 1))
    if not 0 < len(pages) <= MOST_PAGES:
        raise DeepImageError(f"a TIFF of {len(pages) or 'no'} pages: expected one to {MOST_PAGES}")
    return pages, [page for page in pages if not page.subfiletype & (_REDUCED | MASK)] or pages[:1]


@contextmanager
def opened(source: bytes | str) -> Iterator["tifffile.TiffFile"]:
    """The pages of a TIFF. Raises DeepImageError where tifffile or imagecodecs is not installed."""
    if tifffile is None:
        raise DeepImageError("such a TIFF needs tifffile: pip install 'revisit-detectron2[tiff]'")
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # it tells of every odd tag; what matters is raised here
    with tifffile.TiffFile(io.BytesIO(source) if isinstance(source, bytes) else source) as file:
        yield file


def _planes_of_image(pages: list["TiffPage"], name: str) -> Planes:
    """Which of the pages of full resolution are channels of one image."""
    if stated := stated_planes(pages[0].description, len(pages)):
        if stated.left_out:
            message = f"TIFFs of several {' and '.join(stated.left_out)}: the first is read, such as of {name}"
            log_first_n(logging.WARNING, message, name=__name__)
        return stated
    others = pages[1:]
    alike = [page for page in others if (page.shaped, page.dtype) == (pages[0].shaped, pages[0].dtype)]
    if alike:
        message = f"a TIFF of {len(alike) + 1} pages of one size, and nothing says what they are"
        expected = "OME's or ImageJ's axes, such as tifffile.imwrite(..., metadata={'axes': 'CYX'}), or a page"
        raise DeepImageError(f"{message}: expected {expected}")
    if others:
        message = f"TIFFs of several pages of different sizes: the first is read, such as of {name}"
        log_first_n(logging.WARNING, message, name=__name__)
    return Planes((0,))


def _check(pages: list["TiffPage"], window: Window | None) -> None:
    """Before anything is decoded: the pages are alike and whole, and have a meaning and a size that can be read."""
    first = pages[0]
    if len({(page.shaped, page.dtype, page.photometric, page.extrasamples) for page in pages}) > 1:
        raise DeepImageError("a TIFF whose channels are pages of different sizes or kinds: expected one kind")
    _check_colours(first)
    if window:
        _check_windows(first)
    for page in pages:
        _check_page(page, window, len(pages))


def _check_colours(page: "TiffPage") -> None:
    if page.photometric not in _COLOURS or (page.photometric == YCBCR and page.compression != _JPEG):
        colours = getattr(page.photometric, "name", page.photometric)
        raise DeepImageError(f"a TIFF of {colours} colours: expected grey levels, a palette or RGB")


def _check_windows(page: "TiffPage") -> None:
    """What a window needs and a whole image does not."""
    orientation = page.tags.valueof(ORIENTATION)
    if orientation in range(2, 9):
        raise DeepImageError(f"a TIFF that is to be turned (orientation {orientation}): save it upright")
    if isinstance(page.bitspersample, int) and page.bitspersample < 8:
        raise DeepImageError(f"windows of a TIFF of {page.bitspersample} bits a sample: expected 8 or more")
    size = math.prod(page.chunks) * (page.dtype.itemsize if page.dtype else 1)
    if not page.is_memmappable and _COPIES * size > MAX_MEMORY:
        rows, columns = page.chunks[:2]
        raise UnreadableImageError(f"a TIFF with strips or tiles of {columns} x {rows} px: {_TILED}")


def _check_page(page: "TiffPage", window: Window | None, count: int = 1) -> None:
    """One of so many."""
    _check_tags(page)
    if page.dtype is None or isinstance(page.bitspersample, tuple) or page.imagedepth != 1:
        bits, depth = page.bitspersample, page.imagedepth
        raise DeepImageError(f"a TIFF of {bits} bits a sample, {depth} deep: expected one number of bits, and depth 1")
    if page.compression not in _COMPRESSIONS:
        kinds = ", ".join(dict.fromkeys(_COMPRESSIONS.values()))
        raise UnknownCompressionError(f"a TIFF of compression {page.compression:d}: expected {kinds}, so {_CONVERT}")
    of_pixel = count * page.samplesperpixel * page.dtype.itemsize
    left, top, right, bottom = window or (0, 0, page.imagewidth, page.imagelength)
    check_pixel_count(bottom - top, right - left, 4 + _COPIES * of_pixel)
    if not window:
        check_pixel_count(math.prod(page.chunks), 1, _COPIES * page.dtype.itemsize)
    _check_segments(page, window)


def _check_tags(page: "TiffPage") -> None:
    """None that says what samples are is lost, as tifffile leaves out those whose values the file does not hold."""
    form, file = page.parent.tiff, page.parent.filehandle
    file.seek(page.offset)
    (count,) = struct.unpack(form.tagnoformat, file.read(form.tagnosize))
    entries = struct.iter_unpack(f"{form.byteorder}H{form.tagsize - 2}x", file.read(count * form.tagsize))
    lost = {code for (code,) in entries if code in _OF_SAMPLES} - {tag.code for tag in page.tags}
    if lost:
        raise TruncatedImageError(f"a TIFF without the values of tag {min(lost)}, which says what its samples are")


def _check_segments(page: "TiffPage", window: Window | None) -> None:
    """Its strips or tiles are there, and JPEGs of a window no larger than these."""
    file = page.parent.filehandle
    segments = list(zip(page.dataoffsets, page.databytecounts, strict=True))
    if len(segments) != math.prod(page.chunked):
        raise TruncatedImageError(f"a TIFF with {len(segments)} of {math.prod(page.chunked)} strips or tiles")
    if any(min(start, size) < 0 or start + size > file.size for start, size in segments):
        raise TruncatedImageError("a TIFF without its end")
    if page.compression == _JPEG:
        sizes = [jpeg_size(data) for data, _ in _segments(page, window) if data]
        if any(height > page.chunks[0] or width > page.chunks[1] for height, width in sizes):
            raise UnreadableImageError(
                f"a TIFF with JPEGs of up to {max(sizes)} in strips or tiles of {page.chunks[:2]}"
            )


def _segments(page: "TiffPage", window: Window | None) -> Iterator[tuple[bytes | None, int]]:
    """The strips or tiles that a window touches, else all, and their numbers; None of one that the file leaves out."""
    rows, columns = page.chunks[:2]
    down, across = -(-page.imagelength // rows), -(-page.imagewidth // columns)
    numbers = np.arange(math.prod(page.chunked)).reshape(-1, down, across)
    if window:
        left, top, right, bottom = window
        numbers = numbers[:, top // rows : -(-bottom // rows), left // columns : -(-right // columns)]
    chosen = numbers.ravel().tolist()
    places = ([each[number] for number in chosen] for each in (page.dataoffsets, page.databytecounts))
    return page.parent.filehandle.read_segments(*places, chosen)


def _samples(pages: list["TiffPage"], names: tuple[str, ...], window: Window | None) -> Samples:
    """Grey levels, colours or numbers, and what of them is missing; not upright."""
    page = pages[0]
    alpha = _place_of_alpha(page)
    taken = [place for place in range(page.samplesperpixel) if place != alpha]
    stored = [_stored(each, window) for each in pages]
    values = np.concatenate([each[..., taken] for each in stored], axis=-1)
    of_page = names_of_bands(_text(page, GDAL_METADATA), page.samplesperpixel)
    samples = Samples(
        _shown(page, values),
        names=names or tuple(of_page[place] for place in taken if of_page),
        is_colour=_COLOURS[page.photometric] == len(COLOURS),
        alpha=None if alpha is None else stored[0][..., alpha],
        is_premultiplied=alpha is not None and _is_premultiplied(page, alpha),
    )
    if page.photometric == PALETTE:
        samples = _through_palette(samples, page.colormap)
    return with_missing(samples, _no_data(values, _text(page, NODATA)))


def _place_of_alpha(page: "TiffPage") -> int | None:
    """Among the samples of a page, of which the last are of the kinds that ExtraSamples has."""
    further = page.samplesperpixel - _COLOURS[page.photometric]
    kinds = page.extrasamples[-further:] if further > 0 else ()
    places = [page.samplesperpixel - len(kinds) + n for n, kind in enumerate(kinds) if kind in ALPHA]
    if len(places) > 1:
        raise DeepImageError(f"a TIFF with {len(places)} samples of transparency: expected one at most")
    return places[0] if places else None


def _is_premultiplied(page: "TiffPage", alpha: int) -> bool:
    """Whether its values are multiplied by the transparency in a sample of the page."""
    fills_type = page.dtype.kind == "f" or (page.dtype.kind == "u" and page.bitspersample in (8, 16))
    return fills_type and page.extrasamples[alpha - page.samplesperpixel] == PREMULTIPLIED


def _stored(page: "TiffPage", window: Window | None = None) -> np.ndarray:
    """(H, W, S) of a page whose samples lie together or in planes, or of its window."""
    if not window:
        values = page.asarray(squeeze=False, maxworkers=1)[:, 0]  # (planes, H, W, samples of each)
    elif page.is_memmappable:
        left, top, right, bottom = window
        values = page.asarray(squeeze=False, out="memmap")[:, 0, top:bottom, left:right]
    else:
        values = _decoded(page, window)
    return np.moveaxis(values, 0, -2).reshape(*values.shape[1:3], -1)


def _decoded(page: "TiffPage", window: Window) -> np.ndarray:
    """(planes, h, w, samples of each) of a window, by the strips or tiles that it touches."""
    left, top, right, bottom = np.minimum(window, (page.imagewidth, page.imagelength) * 2)
    planes, *_, samples = page.shaped
    values = np.full((planes, bottom - top, right - left, samples), page.nodata, page.dtype)
    tables = {"jpegtables": page.jpegtables, "jpegheader": page.jpegheader} if page.compression == _JPEG else {}
    for data, number in _segments(page, window):
        segment, (plane, _, row, column, _), (_, rows, columns, _) = page.decode(data, number, **tables)
        if segment is None:
            continue
        down = slice(max(top, row), min(bottom, row + rows))
        across = slice(max(left, column), min(right, column + columns))
        part = segment[0, down.start - row : down.stop - row, across.start - column : across.stop - column]
        values[plane, down.start - top : down.stop - top, across.start - left : across.stop - left] = part
    return values


def _shown(page: "TiffPage", values: np.ndarray) -> np.ndarray:
    """Inverted where white is 0."""
    if page.photometric != WHITE_IS_ZERO:
        return values
    if page.samplesperpixel > 1 or values.dtype.kind not in "bui":
        message = f"a TIFF of {page.samplesperpixel} samples of {values.dtype} whose photometric tag is MINISWHITE"
        raise DeepImageError(f"{message}: expected MINISBLACK, for nothing says what black is")
    return ~values if values.dtype.kind in "bi" else values.dtype.type(2**page.bitspersample - 1) - values


def _through_palette(samples: Samples, palette: np.ndarray | None) -> Samples:
    """The levels of 0 to 255 that a palette (3, M) has for each value: one channel where the palette is grey."""
    if palette is None or samples.values.shape[-1] != 1:
        raise DeepImageError("a TIFF with a palette, and it has none or several samples: expected one, and a palette")
    levels = palette.T >> 8 if palette.max() > 255 else palette.T  # of 16 bits; some writers have 8
    is_colour = (levels != levels[:, :1]).any()
    levels = levels.astype(np.uint8) if is_colour else levels[:, :1].astype(np.uint8)
    return samples._replace(values=levels[samples.values[..., 0]], names=(), is_colour=bool(is_colour))


def _no_data(values: np.ndarray, text: str) -> np.ndarray | None:
    """(H, W), where all channels have the mark that a text of GDAL's says."""
    mark = _number_in(text.replace(",", "."), is_whole=values.dtype.kind != "f")
    if mark is None:
        return None
    with np.errstate(over="ignore"):
        return (values == (values.dtype.type(mark) if values.dtype.kind == "f" else mark)).all(axis=-1)


def _number_in(text: str, *, is_whole: bool) -> float | None:
    """None of what is no number, or not one that ``is_whole``, of which a float does not have all of 64 bits."""
    with suppress(ValueError):
        return int(text) if is_whole else float(text)
    with suppress(ValueError):
        number = float(text)
        return int(number) if number.is_integer() else None
    return None


def _mask_of(pages: list["TiffPage"], image: "TiffPage") -> "TiffPage | None":
    """The page that is the mask of the image, if there is one: 0 where it has no data."""
    size = (image.imagelength, image.imagewidth)
    for page in pages:
        if page.subfiletype & MASK and not page.subfiletype & _REDUCED and (page.imagelength, page.imagewidth) == size:
            return page
    return None


def _text(page: "TiffPage", tag: int) -> str:
    value = page.tags.valueof(tag)
    return value.strip().strip("\0") if isinstance(value, str) else ""
