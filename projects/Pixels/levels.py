"""From the samples of a file to grey levels of 0 to 255 in the channels that a PixelFormat has."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from projects.Pixels.channel_files import files_of
from projects.Pixels.sample_files import read_samples
from projects.Pixels.samples import Samples, any_of, straight, with_missing
from revisit.data.images.image_bytes import WINDOW, DeepImageError, read_bytes
from revisit.data.images.opening import strips
from revisit.data.images.pixel_format import COLOURS, PixelFormat, Ranges
from revisit.data.images.reader import size_if_known
from revisit.data.sources.records import CHANNEL_FILES

EIGHT_BITS = (0.0, 255.0)


def samples_of(data: bytes, record: dict, pixels: PixelFormat) -> Samples:
    """What a record's image holds in the channels of ``pixels``, by its bytes and by the files of its further channels.

    Raises:
        DeepImageError: other channels, or channels of other sizes; damaged ones as read_samples.
    """
    whole = _samples_in_files(data, record, pixels)
    places = _places(whole, pixels)
    chosen = _with_nodata(_with_alpha(whole) if max(places) >= whole.values.shape[2] else whole, pixels.nodata)
    if places != tuple(range(chosen.values.shape[2])):
        chosen = chosen._replace(values=chosen.values[..., list(places)])
    return straight(chosen)


def all_samples_of(data: bytes, record: dict, pixels: PixelFormat) -> Samples:
    """As samples_of, in all channels that the image has."""
    return straight(_with_nodata(_samples_in_files(data, record, pixels), pixels.nodata))


def _samples_in_files(data: bytes, record: dict, pixels: PixelFormat) -> Samples:
    """In all channels, with the marks of the files alone."""
    name = str(record.get("file_name", ""))
    files = record.get(CHANNEL_FILES) or (files_of(name, pixels.files) if pixels.files else ())
    whole = read_samples(data, name)
    if files:
        if WINDOW in record:
            _check_sizes(tuple(files))
        others = [read_samples(read_bytes(record | {"file_name": file}), file) for file in files[1:]]
        whole = _joined(list(map(straight, (whole, *others))), files)
    return whole


@lru_cache(maxsize=1024)
def _check_sizes(files: tuple[str, ...]) -> None:
    """Raises DeepImageError for files of one image that differ in size, in which a window is another place."""
    sizes = {file: "{width} x {height} px".format(**size_if_known(file)) for file in files}
    if len(set(sizes.values())) > 1:
        raise DeepImageError(f"files of one image differ in size: {', '.join(map(' '.join, sizes.items()))}")


def _joined(parts: list[Samples], files: Sequence[str]) -> Samples:
    """Channels of several files in one image."""
    for part, file in zip(parts, files, strict=True):
        bands = part.values.shape[2]
        if bands != 1:
            raise DeepImageError(f"{file} has {bands} channels: expected 1, as INPUT.CHANNEL_FILES has a file for each")
        if part.values.shape != parts[0].values.shape:
            sizes = " and ".join("{1} x {0} px".format(*each.values.shape) for each in (part, parts[0]))
            raise DeepImageError(f"{file} and {files[0]} differ in size, {sizes}")
    marked = any_of(*(part.missing for part in parts))
    return Samples(np.concatenate([part.values for part in parts], axis=2), marked)


def _places(samples: Samples, pixels: PixelFormat) -> tuple[int, ...]:
    """Of the channels of ``pixels`` among those of a file: by their names where it has all of these, else in order,
    which none of its names may contradict."""
    count, has_alpha = samples.values.shape[2], samples.alpha is not None
    if not pixels.channels and (count == 1 or samples.is_colour):
        return tuple(range(min(count, 3)))
    named, wanted = samples.names or COLOURS * samples.is_colour, pixels.channels
    if places := places_of_names(named, wanted):
        return places
    if len(wanted) in (count, count + has_alpha) and not _contradict(_small(named), _small(wanted)):
        return tuple(range(len(wanted)))
    raise DeepImageError(f"{_held(samples)}: expected {_expected(pixels)}")


def places_of_names(named: Sequence[str], wanted: Sequence[str]) -> tuple[int, ...]:
    """Of wanted channels among those that are named so, in letters of any size unless these alone tell them apart; ()
    where one is missing."""
    for own, asked in ((list(named), list(wanted)), (_small(named), _small(wanted))):
        if set(asked) <= set(own) and len(set(asked)) == len(asked):
            return tuple(map(own.index, asked))
    return ()


def _small(names: Sequence[str]) -> list[str]:
    return [name.lower() for name in names]


def _contradict(named: list[str], wanted: list[str]) -> bool:
    """Whether a name that is wanted has another place among those of a file."""
    return any(name in named and named.index(name) != place for place, name in enumerate(wanted))


def _held(samples: Samples) -> str:
    """The channels of a file, in words."""
    names = f" ({' '.join(samples.names)})" if samples.names else ""
    return f"{samples.values.shape[2]} channels{names}" + " and transparency" * (samples.alpha is not None)


def _expected(pixels: PixelFormat) -> str:
    """The channels of a format, in words."""
    if not pixels.channels:
        return "grey, or red, green and blue (INPUT.CHANNELS names others)"
    return f"{len(pixels.channels)} ({' '.join(pixels.channels)})"


def _with_alpha(samples: Samples) -> Samples:
    """With what the file calls transparency as a channel, whose 0 then marks nothing."""
    return with_missing(Samples(np.concatenate([samples.values, samples.alpha[..., None]], axis=2), samples.marked))


def _with_nodata(samples: Samples, nodata: float | None) -> Samples:
    """Marked, too, where all channels are ``nodata``."""
    return samples if nodata is None else with_missing(samples, (samples.values == nodata).all(axis=2))


def to_levels(samples: Samples, pixels: PixelFormat) -> np.ndarray:
    """(H, W, C) uint8: of each channel's range the low value becomes 0, the high one 255; what lies beyond is clipped.

    Pixels without data become ``pixels.fill``. A single channel without a name becomes three, as photographs have.

    Raises:
        DeepImageError: no range is known.
    """
    values = samples.values
    ranges = np.array(ranges_of(samples, pixels), np.float64)
    if values.dtype == np.uint8 and (ranges == EIGHT_BITS).all():
        levels = np.ascontiguousarray(values)
    else:
        levels = np.empty(values.shape, np.uint8)
        for rows in strips(*values.shape[:2]):
            levels[rows] = _scaled(values[rows], ranges)
    fill = pixels.fill or (0,) * levels.shape[2]
    if (missing := samples.missing) is not None:
        levels = levels.copy() if levels is values else levels
        levels[missing] = fill if len(fill) == levels.shape[2] else fill[0]
    return levels if pixels.channels or levels.shape[2] == 3 else np.repeat(levels, 3, axis=2)


def ranges_of(samples: Samples, pixels: PixelFormat) -> Ranges:
    """Of each channel, or one of all; of 8 bits all values where nothing says another. Raises DeepImageError."""
    if pixels.ranges:
        return pixels.ranges
    if pixels.bits:
        return ((0.0, float(2**pixels.bits - 1)),)
    if samples.values.dtype == np.uint8:
        return (EIGHT_BITS,)
    raise DeepImageError(f"values of {samples.values.dtype}: set INPUT.RANGE auto, or to what becomes black and white")


def _scaled(values: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    """(h, W, C) uint8. Rounded down, as photographs of more bits are; in float64 where float32 would lose digits."""
    exact = np.float64 if values.dtype.itemsize > 2 else np.float32
    low, high = ranges.astype(exact).T
    levels = (values.astype(exact) - low) * (256 / (high - low)).astype(exact)
    return np.nan_to_num(levels, nan=0.0).clip(0, 255).astype(np.uint8)
