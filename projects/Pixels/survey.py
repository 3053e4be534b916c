"""What a sample of the images holds: which channels, and which values in them."""

import functools
import itertools
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from projects.Pixels.arrays import NPY_MAGIC, NPZ_MAGIC
from projects.Pixels.channel_files import names_of_patterns
from projects.Pixels.dicom import HEAD, is_dicom
from projects.Pixels.grey_levels import few_bits
from projects.Pixels.levels import all_samples_of, places_of_names, samples_of
from projects.Pixels.samples import Samples
from projects.Pixels.tiff_descriptions import says_planes
from revisit.data.images.image_bytes import WINDOW, UnreadableImageError, read_bytes
from revisit.data.images.opening import TIFF_MAGICS
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.tiff_tags import BITS, DESCRIPTION, FORMAT, colours_of, further_bands, tags_of
from revisit.data.sources.records import CHANNEL_FILES, Records, ask_each, sample
from revisit.errors import UserError, expect, first_line

PIXELS = 4096  # of an image, at most
_BITS_OF_BYTES = 8
_UNSIGNED = 1  # a format of a TIFF's samples
_kept: dict[tuple, "Survey | None"] = {}  # of the last images that were asked for


class Content(NamedTuple):
    """Of one image."""

    file_name: str
    channels: tuple[str, ...]  # names of all, "" where the file says none
    is_colour: bool  # or grey
    is_plain: bool  # whether it can be a photograph of some BIT_DEPTH: without marks and negative values
    dtype: str
    bits: int  # of a sample, as far as there are no more than 8
    values: np.ndarray  # (n, C) of pixels that have data


class Survey(NamedTuple):
    """Of the images that were looked at."""

    images: int
    channels: tuple[str, ...]  # names, as the files or their patterns have them, else numbers from 1
    is_colour: bool  # whether the files call these red, green and blue, or there is one
    dtypes: tuple[str, ...]
    bits: int  # of a sample where they are of bytes, the most
    values: np.ndarray  # (n, C) of pixels that have data, n > 0

    @property
    def is_of_bytes(self) -> bool:
        return self.dtypes == ("uint8",)


def survey(records: Records, pixels: PixelFormat) -> Survey | None:
    """Of up to 1,000 images, spread evenly; None where they can be photographs.

    Args:
        pixels: what is known already of channels, their files and nodata.

    Raises:
        UserError: images with other channels than others, or than ``pixels`` has; no data in any.
    """
    places = tuple(map(_place, sample(records)))
    asked = PixelFormat(channels=pixels.channels, files=pixels.files, nodata=pixels.nodata)
    key = (places, asked, pixels.is_of_photographs)
    if key not in _kept:  # several keys of a config ask for the same
        _kept.clear()
        _kept[key] = seen = _survey(places, asked, can_be=pixels.is_of_photographs)
        if seen is not None:
            _kept[places, replace(asked, channels=seen.channels), False] = seen
    return _kept[key]


def _place(record: dict) -> tuple[tuple[str, object], ...]:
    """Where an image lies, as a key of a cache."""
    fields = ("file_name", "offset", "size", "frame", CHANNEL_FILES, WINDOW)
    values = ((field, record[field]) for field in fields if field in record)
    place = tuple((field, tuple(value) if isinstance(value, list) else value) for field, value in values)
    with suppress(KeyError, OSError):  # of an array in memory, or of a file at a URL
        return (*place, ("time", os.stat(record["file_name"]).st_mtime_ns))
    return place


def _survey(places: tuple, pixels: PixelFormat, can_be: bool) -> Survey | None:
    """``can_be``: whether nothing says that they are no photographs."""
    records = [dict(place) for place in places if place]
    if not records or (can_be and not any(ask_each(_may_hold_more, records))):
        return None
    look = functools.partial(_look, pixels=pixels)
    looked = ask_each(look, records, "looking at channels and values")
    contents = [each for each in looked if isinstance(each, Content)]
    expect(contents, f"none of {len(looked)} images that were looked at can be read, such as {looked[0]}")
    if can_be and all(each.is_plain for each in contents):
        return None
    _expect_alike(contents)
    return _joined(contents, pixels)


def _joined(contents: list[Content], pixels: PixelFormat) -> Survey:
    first = contents[0]
    values = np.concatenate([_in_order(each, first.channels) for each in contents])
    expect(len(values), f"{first.file_name} and {len(contents) - 1} other images: no pixel has data")
    dtypes = tuple(sorted({each.dtype for each in contents}))
    bits = max(each.bits for each in contents)
    return Survey(len(contents), _names(first.channels, pixels), first.is_colour, dtypes, bits, values)


def _expect_alike(contents: list[Content]) -> None:
    """Raise UserError where images differ in how many channels they have."""
    first = contents[0]
    for other in contents:
        if len(other.channels) != len(first.channels):
            one, two = (f"{each.file_name} has {len(each.channels)} channels" for each in (first, other))
            raise UserError(f"{one}, {two}: expected images of one kind, or INPUT.CHANNELS that all of them have")


def _in_order(content: Content, channels: Sequence[str]) -> np.ndarray:
    """The values of an image in the order of these channels, where its file has all of their names."""
    places = places_of_names(content.channels, channels)
    return content.values[:, places] if places else content.values


def _names(own: tuple[str, ...], pixels: PixelFormat) -> tuple[str, ...]:
    """Names of channels: those that were asked for, else the files' own, else numbers from 1."""
    if pixels.channels:
        return pixels.channels
    if pixels.files:
        own = names_of_patterns(pixels.files)
    return own if all(own) and len(set(own)) == len(own) else tuple(str(n) for n in range(1, len(own) + 1))


def _may_hold_more(record: dict) -> bool:
    """Whether a file is of a format that holds more than photographs, by its first bytes."""
    try:
        head = read_bytes(record, HEAD)
    except (OSError, UnreadableImageError):
        return False
    if head.startswith(TIFF_MAGICS) and CHANNEL_FILES not in record:
        return not _is_plain_tiff(read_bytes(record))
    return CHANNEL_FILES in record or _is_data(head)


def _is_plain_tiff(data: bytes) -> bool:
    """Whether a TIFF is RGB or grey with 8 bits a sample, by its tags, and its pages are no channels; without tifffile,
    of any number of bits."""
    try:
        tags = tags_of(data)
        if find_spec("tifffile") is None:
            return further_bands(tags) <= 0 or colours_of(tags) > 1
        if tags.next and says_planes(str(tags.get(DESCRIPTION, ""))):
            return False
        is_shallow = max(tags.get(BITS, (1,))) <= 8
        is_unsigned = set(tags.get(FORMAT, (_UNSIGNED,))) == {_UNSIGNED}
        return further_bands(tags) <= 0 and is_shallow and is_unsigned
    except Exception:  # of a damaged file, which who reads it names
        return False


def _look(record: dict, pixels: PixelFormat) -> Content | str:
    """What is wrong with an image that cannot be read; another check counts these."""
    try:
        data = read_bytes(record)
        samples = samples_of(data, record, pixels) if pixels.channels else all_samples_of(data, record, pixels)
        has_tags = data.startswith(TIFF_MAGICS) and CHANNEL_FILES not in record
        bits = few_bits(tags_of(data) if has_tags else {}) or _BITS_OF_BYTES
    except Exception as error:  # damaged files raise whatever their bytes trip
        return f"{record['file_name']}: {first_line(error)}"
    count = samples.values.shape[2]
    is_colour = samples.is_colour or count == 1
    has_marks = samples.missing is not None and samples.values.dtype != np.uint8
    is_plain = is_colour and not has_marks and _is_of_some_depth(data, samples)
    named = pixels.channels or samples.names
    names = named if len(named) == count else ("",) * count
    return Content(
        str(record["file_name"]),
        names,
        is_colour,
        is_plain,
        str(samples.values.dtype),
        bits,
        some_pixels(samples, pixels.nodata),
    )


def _is_of_some_depth(data: bytes, samples: Samples) -> bool:
    """Whether INPUT.BIT_DEPTH can say what the values of a file mean."""
    kind, bytes_of_one = samples.values.dtype.kind, samples.values.dtype.itemsize
    fits = (kind == "u" and bytes_of_one <= 2) or (kind == "f" and samples.values.min() >= 0)
    return fits and not _is_data(data)


def _is_data(head: bytes) -> bool:
    """Whether a file that begins so is an array or DICOM, which are never photographs."""
    return head.startswith((NPY_MAGIC, NPZ_MAGIC)) or is_dicom(head)


def some_pixels(samples: Samples, nodata: float | None) -> np.ndarray:
    """(n, C) of at most PIXELS pixels that have data in all channels, spread evenly, finite."""
    _, width, channels = samples.values.shape
    flat = samples.values.reshape(-1, channels)
    least = 1 + len(flat) // PIXELS | 1
    step = next(number for number in itertools.count(least, 2) if math.gcd(number, width) == 1)  # meets all columns
    kept = np.ones(len(flat[::step]), bool) if samples.missing is None else ~samples.missing.reshape(-1)[::step]
    values = flat[::step][kept]
    if nodata is not None:
        values = values[(values != nodata).all(axis=1)]
    return values[np.isfinite(values).all(axis=1)] if values.dtype.kind == "f" else values
