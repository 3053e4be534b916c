"""The two appearances of the toy world. Nothing that ``HELDOUT`` draws from occurs in ``TRAIN``.

An appearance lists, per parameter, the closed intervals it is drawn from (uniformly over their union) or
the families it is chosen from. What makes a class, its outline and its kind of texture, is in both.
"""

from dataclasses import dataclass

import numpy as np

Intervals = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Appearance:
    """Where the parameters of a scene are drawn from."""

    texture_period: Intervals  # in sides of the object (a side is the square root of its area)
    texture_duty: Intervals  # share of the area that has the first tone
    texture_angle: Intervals  # degrees in the image
    dot_row_shift: Intervals  # in periods, from one row of dots to the next
    hue_step: Intervals  # degrees between the two tones of an object
    object_saturation: Intervals
    background_saturation: Intervals
    background_families: tuple[str, ...]
    clutter_families: tuple[str, ...]
    light_azimuth: Intervals  # degrees, where the light comes from: 0 right, 90 below, 180 left, 270 above
    light_contrast: Intervals
    light_warmth: Intervals  # > 0 adds red and takes blue


TRAIN = Appearance(
    texture_period=((0.19, 0.27),),
    texture_duty=((0.43, 0.50),),
    texture_angle=((0, 17), (28, 62), (73, 107), (118, 152), (163, 180)),
    dot_row_shift=((0.0, 0.15),),
    hue_step=((90, 180),),
    object_saturation=((0.50, 0.90),),
    background_saturation=((0.22, 0.55),),
    background_families=("gradient", "clouds", "blobs"),
    clutter_families=("pebbles",),
    light_azimuth=((225, 315),),
    light_contrast=((0.35, 0.60),),
    light_warmth=((-0.04, 0.04),),
)

HELDOUT = Appearance(
    texture_period=((0.28, 0.34),),
    texture_duty=((0.32, 0.40),),
    texture_angle=((19, 26), (64, 71), (109, 116), (154, 161)),
    dot_row_shift=((0.35, 0.50),),
    hue_step=((0, 60),),
    object_saturation=((0.15, 0.42),),
    background_saturation=((0.04, 0.18),),
    background_families=("hills", "mosaic", "dunes"),
    clutter_families=("twigs",),
    light_azimuth=((0, 40), (140, 220), (320, 360)),
    light_contrast=((0.62, 0.80),),
    light_warmth=((-0.16, -0.08), (0.08, 0.16)),
)


def draw_from(rng: np.random.Generator, intervals: Intervals) -> float:
    """One number, uniform over the union of disjoint ``intervals``."""
    widths = np.array([high - low for low, high in intervals])
    ends = np.cumsum(widths)
    position = rng.uniform(0, ends[-1])
    chosen = min(int(np.searchsorted(ends, position, side="right")), len(intervals) - 1)
    return float(intervals[chosen][1] - (ends[chosen] - position))


def hsv_to_rgb(hue: float, saturation: float, value: float) -> np.ndarray:
    """RGB in [0, 1], float32 (3,), of a hue in degrees and a saturation and value in [0, 1]."""
    sector = (np.array([5.0, 3.0, 1.0]) + hue / 60.0) % 6.0
    drop = np.clip(np.minimum(sector, 4.0 - sector), 0.0, 1.0)
    return (value - value * saturation * drop).astype(np.float32)
