"""The keys that say what samples mean: INPUT.CHANNELS, CHANNEL_FILES, RANGE and NODATA, and how they decide themselves.

Weights that are named say it, else the images do. What is decided goes into the config, and with it into the flags of
weights.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from projects.Pixels.channel_files import FILES, patterns_of, with_files, words_in
from projects.Pixels.survey import Survey, survey
from revisit.checkpoint.start import start
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.pixel_format import PixelFormat, Ranges
from revisit.errors import expect, translated
from revisit.keys import Decision, Facts, Rule, declare, of_detectron2

from detectron2.config import CfgNode

CHANNELS, CHANNEL_FILES, RANGE, NODATA, SHOWN = (
    "INPUT.CHANNELS",
    "INPUT.CHANNEL_FILES",
    "INPUT.RANGE",
    "INPUT.NODATA",
    "VIEW.CHANNELS",
)
NAMED = (CHANNELS, CHANNEL_FILES, RANGE, NODATA, SHOWN)
TAILS = (0.5, 99.5)  # percentiles of a channel's values, between which they become grey levels
MOST_CHANNELS = 1024
NARROW = 0.1  # of a range: 99 % of the values in less is worth a warning

logger = logging.getLogger(__name__)


def format_of_values(values: Mapping[str, Any]) -> PixelFormat:
    """Of config values, or flags, by full key; what is still open says nothing."""
    bits = values.get("INPUT.BIT_DEPTH")
    channels = words_of(values.get(CHANNELS))
    mean = values.get("MODEL.PIXEL_MEAN") or ()
    has_fill = bool(channels) or values.get(NODATA) is not None or bool(values.get(RANGE))
    return PixelFormat(
        bits=None if bits in (None, "auto") else int(bits),
        channels=channels,
        files=patterns_of(values.get(CHANNEL_FILES) or ()),
        ranges=_each(pairs_of(values.get(RANGE)) or (), len(channels)),
        nodata=values.get(NODATA),
        fill=tuple(round(value) for value in mean) if has_fill else (),
        shown=_mix(values.get(SHOWN), channels),
    )


def words_of(value: object) -> tuple[str, ...]:
    """Names of channels, from words between blanks or a list; () of auto and None."""
    if value in (None, "auto"):
        return ()
    return words_in(value) if isinstance(value, str) else tuple(map(str, value))


def pairs_of(value: object) -> Ranges | None:
    """Of a pair or a list of pairs, perhaps as numbers between blanks; None of a word, and of what is no range."""
    try:
        numbers = np.array(words_in(value) if isinstance(value, str) else value, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    if numbers.size == 0 or numbers.size % 2 or not np.isfinite(numbers).all():
        return None
    pairs = numbers.reshape(-1, 2)
    return tuple((low, high) for low, high in pairs.tolist()) if (pairs[:, 0] < pairs[:, 1]).all() else None


def _each(ranges: Ranges, count: int) -> Ranges:
    """A range for each of ``count`` channels, where one is of all. Raises UserError for another number of ranges."""
    fits = not count or len(ranges) in (0, 1, count)
    expect(fits, f"{RANGE} has {len(ranges)} pairs, and there are {count} channels: expected one, or one for each")
    return ranges * count if count and len(ranges) == 1 else ranges


def _mix(value: object, channels: Sequence[str]) -> tuple[tuple[float, ...], ...]:
    """``PixelFormat.shown`` of the names of three channels, or of its own numbers."""
    if value in (None, "auto") or not channels:
        return ()
    shown = words_in(value) if isinstance(value, str) else value
    problem = f"{SHOWN} {value}: expected three of {', '.join(channels)}"
    expect(isinstance(shown, list | tuple), problem)
    if any(isinstance(each, list | tuple) for each in shown):
        with translated(problem, content=True):
            return tuple(tuple(map(float, row)) for row in shown)
    names = list(map(str, shown))  # channels without a name are called 1, 2 and so on
    expect(len(names) == 3 and set(names) <= set(channels), problem)
    return tuple(tuple(float(name == channel) for channel in channels) + (0.0,) for name in names)


def flags_of_format(pixels: PixelFormat) -> dict[str, Any]:
    """Plain values by config key that say a format again, but for its ``fill``; {} of photographs of 8 bits."""
    flags = {
        "INPUT.BIT_DEPTH": pixels.bits,
        CHANNELS: list(pixels.channels),
        CHANNEL_FILES: list(pixels.files),
        RANGE: _lists(pixels.ranges),
        NODATA: pixels.nodata,
        SHOWN: _lists(pixels.shown),
    }
    return {key: value for key, value in flags.items() if value not in (None, [])}


def files_of_run(cfg: CfgNode, facts: Facts) -> Decision | None:
    """As a list; of a data set that has them in its name."""
    if cfg.INPUT.CHANNEL_FILES:
        return Decision(list(patterns_of(cfg.INPUT.CHANNEL_FILES)), "each channel has a file")
    name = next((name for name in cfg.DATASETS.TRAIN if name.startswith(f"{FILES}:")), "")
    return Decision(list(patterns_of(name.rpartition(":")[2])), f"as {name} says", kept=True) if name else None


def names_with_files(cfg: CfgNode, facts: Facts) -> Decision | None:
    """Data sets whose images are listed once, by the file of their first channel."""
    names, patterns = cfg.DATASETS[facts.key.rpartition(".")[2]], cfg.INPUT.CHANNEL_FILES or ()
    named = tuple(with_files(name, patterns) for name in names)
    return Decision(named, f"by {CHANNEL_FILES}") if named != tuple(names) else None


def channels_of_run(cfg: CfgNode, facts: Facts) -> Decision | None:
    """As they are named, or as the weights were trained, or as the images have them; None of photographs."""
    pixels = pixel_format(cfg)
    if pixels.channels:
        return Decision(list(pixels.channels), "as named")
    if trained := start(cfg.MODEL.WEIGHTS).flags.get(CHANNELS):
        return Decision(list(trained), f"as {cfg.MODEL.WEIGHTS} was trained", kept=True)
    seen = survey(facts.records, pixels) if facts.records else None
    if seen is None or seen.is_colour:
        return Decision(None, "photographs", kept=True) if cfg.INPUT.CHANNELS == "auto" and facts.records else None
    return Decision(list(seen.channels), f"as {seen.images} images that were looked at have them", kept=True)


def order_of_run(cfg: CfgNode, facts: Facts) -> Decision | None:
    """RGB of channels, whose order is theirs, whatever Detectron2's default turns round."""
    is_turned = cfg.INPUT.FORMAT == "BGR" and bool(pixel_format(cfg).channels)
    return Decision("RGB", f"channels come in the order of {CHANNELS}", kept=True) if is_turned else None


def range_of_run(cfg: CfgNode, facts: Facts) -> Decision | None:
    """As stated, or as the weights were trained, or by the values of the images; None where BIT_DEPTH says it."""
    pixels = pixel_format(cfg)
    seen = survey(facts.records, pixels) if facts.records else None
    if pixels.ranges:
        decision = Decision(_lists(pixels.ranges), "as stated")
    elif seen is None or (pixels.bits and cfg.INPUT.RANGE is None):
        return None
    else:
        decision = _range_of_weights(cfg, pixels) or _range_of_images(seen, cfg.INPUT.RANGE)
    if seen is not None and len(seen.channels) == len(decision.value):
        logger.info(f"values of {seen.images} images:\n{table_of_ranges(seen, decision.value)}")
        warn_of_marks(seen)
    return decision


def _range_of_weights(cfg: CfgNode, pixels: PixelFormat) -> Decision | None:
    """That of MODEL.WEIGHTS, if they were trained on such channels and no other range is asked for."""
    flags = start(cfg.MODEL.WEIGHTS).flags
    is_alike = tuple(flags.get(CHANNELS, ())) == pixels.channels
    if cfg.INPUT.RANGE is None and is_alike and flags.get(RANGE):
        return Decision(flags[RANGE], f"as {cfg.MODEL.WEIGHTS} was trained", kept=True)
    return None


def _range_of_images(seen: Survey, stated: str | None) -> Decision:
    """Raises UserError for values of types that tell of several scales, where nobody has asked for one range."""
    kinds, how = {np.dtype(name) for name in seen.dtypes}, stated or "auto"
    is_one = len({kind.kind == "f" for kind in kinds}) == 1 and (np.dtype(np.uint8) not in kinds or len(kinds) == 1)
    several = f"some images have values of {' and others of '.join(seen.dtypes)}, which one range makes dark or bright"
    expect(stated or is_one, f"{several}: save all as one type, or set {RANGE} auto")
    ranges = _lists(measured_ranges(seen, how))
    return Decision(ranges, f"{how}, of {seen.images} images", kept=True, level=logging.DEBUG)


def measured_ranges(seen: Survey, how: str) -> Ranges:
    """Of each channel: ``auto`` or ``minmax``; of 8 bits or fewer all that these hold for ``auto``, which loses
    nothing."""
    if how == "auto" and seen.is_of_bytes:
        return ((0.0, 2.0**seen.bits - 1),) * len(seen.channels)
    shares = (0, 100) if how == "minmax" else TAILS
    low, high = np.percentile(seen.values.astype(np.float64), shares, axis=0)
    return tuple(_rounded(*pair) for pair in zip(low, high, strict=True))


def _rounded(low: float, high: float) -> tuple[float, float]:
    """A range in six digits, in more where it is narrow and far from 0; above 0 wide where a channel is constant."""
    most = max(abs(low), abs(high))
    further = -math.log10(high / most - low / most) if high > low else 0.0
    digits = 6 + max(0, int(further))
    low, high = float(f"{low:.{digits}g}"), float(f"{high:.{digits}g}")
    return low, high if high > low else low + max(1.0, abs(low) / 1000)


def table_of_ranges(seen: Survey, ranges: Sequence[Sequence[float]]) -> str:
    """The values of each channel and its range, as a table; warns of values that fill little of their range."""
    marks = np.percentile(seen.values.astype(np.float64), (0, 0.5, 50, 99.5, 100), axis=0).T
    rows = ["channel        lowest     median    highest   black      white"]
    for name, (lowest, low, median, high, highest), (black, white) in zip(seen.channels, marks, ranges, strict=True):
        rows.append(f"{name:12} {lowest:9.6g}  {median:9.6g}  {highest:9.6g}  {black:9.6g}  {white:9.6g}")
        if high - low < NARROW * (white - black):
            filled = f"99 % of the values of channel {name} lie from {low:g} to {high:g}"
            logger.warning(f"{filled}, in less than a tenth of its range {black:g} to {white:g}: nearly one grey level")
    return "\n".join(rows)


def warn_of_marks(seen: Survey) -> None:
    """Of a value at the end of a channel that so many pixels have, so far from all others, that it may mean no data."""
    all_values = seen.values.astype(np.float64)  # where the widest distance fits
    for name, values in zip(seen.channels, all_values.T, strict=True):
        for end, others_end in ((values.max(), 99), (values.min(), 1)):
            others = values[values != end]
            if len(others) and abs(end - np.percentile(others, others_end)) > (1 - NARROW) * np.ptp(all_values):
                share = f"{100 * np.mean(values == end):.2g} % of the values of channel {name} are {end:g}"
                logger.warning(f"{share}, far from all others: if that is a mark for no data, set {NODATA} {end:g}")


def _lists(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [list(row) for row in rows]


def _is_names(value: object) -> bool:
    names = words_of(value) if value is None or isinstance(value, str | list | tuple) else ("", "")
    return len(set(names)) == len(names) <= MOST_CHANNELS and all(names)


def _is_range(value: object) -> bool:
    return value in (None, "auto", "minmax") or pairs_of(value) is not None


# yacs lets a key whose default is None become a word, a number or a list.
declare(
    CHANNELS,
    None,
    'Names of the images\' channels, in the order in which the network sees them, such as "red green blue nir". '
    "None or auto: as the weights were trained, else as the images have them; None of photographs.",
    Rule("auto, or different names between blanks", _is_names),
    resolve=channels_of_run,
    after=("MODEL.WEIGHTS", CHANNEL_FILES),
)
of_detectron2("INPUT.FORMAT", resolve=order_of_run, after=CHANNELS)
declare(
    CHANNEL_FILES,
    None,
    "Files of an image's channels, where each has its own, in the order of INPUT.CHANNELS, such as "
    '"{}_D.TIF {}_F.TIF {}_R.TIF"; an image is listed once, by the first.',
    resolve=files_of_run,
)
declare(
    RANGE,
    None,
    'Values that become black and white, a pair or one for each channel, such as "0 3000". auto: the percentiles 0.5 '
    "and 99.5 of each channel in up to 1,000 images (of 8 bits all). minmax: the lowest and highest. None: as "
    "the weights were trained, else by INPUT.BIT_DEPTH where it fits, else auto.",
    Rule('auto, minmax, or pairs of numbers in rising order, such as "0 3000"', _is_range),
    resolve=range_of_run,
    after=(CHANNELS, NODATA),
)
declare(
    NODATA,
    None,
    "Value of pixels that say nothing, which become MODEL.PIXEL_MEAN; in addition to those that a file marks: by "
    "GDAL's tag 42113, NaN or transparency.",
    Rule("None or a number", lambda value: value is None or type(value) in (int, float)),
)
of_detectron2("DATASETS.TRAIN", "DATASETS.TEST", resolve=names_with_files, after=CHANNEL_FILES)
