"""The look ``channels``, of views whose channels are not red, green and blue; VIEWS.POLICY decides itself to it.

Each channel is changed as if it were alone. What colours alone can have, three channels get that are called so.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from revisit.data.images.deep_images import pixel_format
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.views.looks import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    LOOK_REGISTRY,
    SATURATION,
    DrawLook,
    Look,
    StandardLook,
    draw_standard,
    flipped_points,
)
from revisit.data.views.operations import flip, gaussian_blur, levels
from revisit.keys import SHARE, declare

from detectron2.config import CfgNode

OWN = (0.8, 1.2)  # factors of one channel, times those of all
GAMMA = (0.7, 1.4)
UNCHANGED = (1.0, 1.0, 1.0)

declare(
    "VIEWS.CHANNEL_DROPOUT",
    0.0,
    "How often the look channels has the mean of a channel in place of the channel, for images that may lack some. One "
    "always stays.",
    SHARE,
    read_by="Pretraining",
)


@dataclass(frozen=True)
class ChannelLook(Look):
    """Colours, levels, blur, flip and what is dropped, in this order."""

    places: tuple[int, ...]  # of red, green and blue; (): none
    colours: StandardLook  # of these three, without blur and flip
    factors: tuple[tuple[float, float, float], ...]  # brightness, contrast and gamma of each channel
    blur_sigma: float  # px; 0 is no blur
    flip: bool
    dropped: tuple[tuple[int, int], ...]  # places of channels, with the grey levels that they have instead

    def apply(self, image: np.ndarray) -> np.ndarray:
        planes = np.ascontiguousarray(image.transpose(2, 0, 1))
        if self.places:
            places = list(self.places)
            photograph = np.ascontiguousarray(image[..., places])
            planes[places] = self.colours.apply(photograph).transpose(2, 0, 1)
        changed = [self._changed(plane, factors) for plane, factors in zip(planes, self.factors, strict=True)]
        view = np.stack(changed, axis=-1)
        for place, level in self.dropped:
            view[..., place] = level
        return view

    def _changed(self, plane: np.ndarray, factors: tuple[float, float, float]) -> np.ndarray:
        """A channel (S, S)."""
        plane = plane if factors == UNCHANGED else levels(plane, *factors)
        plane = gaussian_blur(plane, self.blur_sigma) if self.blur_sigma else plane
        return flip(plane) if self.flip else plane

    def source_points(self, size: int) -> np.ndarray:
        return flipped_points(size) if self.flip else np.eye(3)


@LOOK_REGISTRY.register()
def channels(cfg: CfgNode) -> DrawLook:
    """As the standard look; brightness and contrast have a factor of each channel too, and gamma is one for all."""
    views = cfg.VIEWS
    chances = {"grey": views.GREY_PROBABILITY, "blur": views.BLUR_PROBABILITY, "dropout": views.CHANNEL_DROPOUT}
    return partial(draw_channels, pixels=pixel_format(cfg), **chances)


def draw_channels(
    rng: np.random.Generator, pixels: PixelFormat, grey: float, blur: float, dropout: float
) -> ChannelLook:
    """A look of images of this format; a channel is dropped with probability ``dropout``."""
    standard = draw_standard(rng, grey, blur)
    own = rng.uniform(*OWN, size=(pixels.count, 2))
    gamma = float(rng.uniform(*GAMMA))
    chances = rng.random(pixels.count)
    of_all = dict(standard.jitter)
    factors = (UNCHANGED,) * pixels.count
    if of_all:
        joint = np.array([of_all[BRIGHTNESS], of_all[CONTRAST]])
        factors = tuple((light, contrast, gamma) for light, contrast in (joint * own).tolist())
    of_colours = tuple(each for each in standard.jitter if each[0] in (SATURATION, HUE))
    missing = np.flatnonzero((chances < dropout) & (chances < chances.max())).tolist()
    fill = pixels.fill or (0,) * pixels.count
    return ChannelLook(
        places=pixels.colours,
        colours=replace(standard, jitter=of_colours, blur_sigma=0.0, flip=False),
        factors=factors,
        blur_sigma=standard.blur_sigma,
        flip=standard.flip,
        dropped=tuple((place, fill[place]) for place in missing),
    )
