"""What follows from the grey levels of a sample: MODEL.PIXEL_MEAN auto, and VIEW.CHANNELS auto."""

import numpy as np

from projects.Pixels.channels import CHANNELS, SHOWN
from projects.Pixels.levels import to_levels
from projects.Pixels.samples import Samples
from projects.Pixels.survey import some_pixels, survey
from revisit.checkpoint.flags import IMAGENET
from revisit.checkpoint.start import start
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.image_bytes import UnreadableImageError
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import read_record
from revisit.data.sources.records import Records, ask_each, sample
from revisit.errors import expect
from revisit.keys import Decision, Facts, declare, of_detectron2

from detectron2.config import CfgNode

MEAN, STD = "MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD"
SPREAD = 2.5  # standard deviations of a principal component that become half of the grey levels


def levels_of(records: Records, pixels: PixelFormat) -> np.ndarray:
    """(n, C) uint8 of pixels that have data, of up to 1,000 images. Raises UserError where none can be read."""
    seen = survey(records, pixels)
    if seen is not None:
        return to_levels(Samples(seen.values[:, None]), pixels)[:, 0]

    def some(record: dict) -> np.ndarray | None:
        try:
            return some_pixels(Samples(read_record(record, pixels, complete=True)), None)
        except UnreadableImageError:
            return None

    read = [levels for levels in ask_each(some, sample(records), "measuring grey levels") if levels is not None]
    expect(read, f"{MEAN} auto: none of the images can be read")
    return np.concatenate(read)


def mean_of_run(cfg: CfgNode, facts: Facts) -> Decision | None:
    """MODEL.PIXEL_MEAN and PIXEL_STD: of the weights that have these channels, else measured; None where they fit."""
    pixels = pixel_format(cfg)
    flags, mean = start(cfg.MODEL.WEIGHTS).flags, cfg.MODEL.PIXEL_MEAN
    of_photographs = (set(IMAGENET[MEAN]), set(() if flags.get(CHANNELS) else flags.get(MEAN, ())))
    is_of_others = not pixels.colours and set(mean) in of_photographs and MEAN not in facts.typed
    if len(mean) == pixels.count and not is_of_others:
        return None
    if flags.get(CHANNELS) and pixels.channels:
        return Decision(flags[MEAN], f"as {cfg.MODEL.WEIGHTS} was trained", {STD: flags[STD]}, kept=True)
    if not facts.records:
        expect(facts.images is None, f"{MEAN} has no number for each of {pixels.count} channels: no image says them")
        return None
    mean, std = moments_of(levels_of(facts.records, pixels))
    return Decision(mean, "measured on the images", {STD: std}, kept=True)


def moments_of(levels: np.ndarray) -> tuple[list[float], list[float]]:
    """Means and deviations of channels, of (n, C) grey levels."""
    return np.round(levels.mean(axis=0), 2).tolist(), np.round(levels.std(axis=0).clip(1), 2).tolist()


def shown_of_run(cfg: CfgNode, facts: Facts) -> Decision | None:
    """What pictures show of channels that have no colours: their principal components."""
    pixels = pixel_format(cfg)
    is_plain = len(pixels.channels) < 3 or pixels.colours or pixels.shown
    if is_plain or not facts.records:
        return None
    mix = principal_components(levels_of(facts.records, pixels))
    return Decision(mix, "the channels' principal components", kept=True, level=10)


def principal_components(levels: np.ndarray) -> list[list[float]]:
    """Three rows of C weights and what is added: the first three principal components of (n, C) grey levels, each from
    black to white over SPREAD standard deviations on both sides of its mean. C is 3 or more."""
    mean = levels.mean(axis=0)
    _, axes = np.linalg.eigh(np.cov(levels.astype(np.float64), rowvar=False))
    rows = []
    for axis in axes.T[: -len("RGB") - 1 : -1]:
        axis = axis * (1 if axis.sum() >= 0 else -1)  # brighter where the channels are
        weights = axis * 127.5 / max(SPREAD * (levels @ axis).std(), 1e-6)
        rows.append([*np.round(weights, 5).tolist(), round(float(127.5 - weights @ mean), 3)])
    return rows


of_detectron2(MEAN, resolve=mean_of_run, after=("INPUT.CHANNELS", "INPUT.RANGE", "INPUT.BIT_DEPTH"))
declare(
    SHOWN,
    None,
    "What pictures show of images with channels: the names of three, as red, green and blue. None or auto: those that "
    "are called so, else the first three principal components of the run's images.",
    may_change=True,
    resolve=shown_of_run,
    after=("INPUT.CHANNELS", "INPUT.RANGE", MEAN),
)
