"""The two appearances of the toy world, and its backgrounds. Nothing that ``HELDOUT`` draws from is in ``TRAIN``.

An appearance lists, per parameter, the closed intervals it is drawn from (uniformly over their union) or
the families it is chosen from. What makes a class, its outline and its kind of texture, is in both.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from projects.ToyScenes.classes import polygon_coverage

_COARSE, _FINE = 6, 26  # nodes on a side of a background's two lattices of random numbers

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
    reached = int(np.searchsorted(ends, position, side="right"))
    chosen = min(reached, len(intervals) - 1)
    _, high = intervals[chosen]
    return float(high - (ends[chosen] - position))


def hsv_to_rgb(hue: float, saturation: float, value: float) -> np.ndarray:
    """RGB in [0, 1], float32 (3,), of a hue in degrees and a saturation and value in [0, 1]."""
    sector = (np.array([5.0, 3.0, 1.0]) + hue / 60.0) % 6.0
    drop = np.clip(np.minimum(sector, 4.0 - sector), 0.0, 1.0)
    return (value - value * saturation * drop).astype(np.float32)


@dataclass(frozen=True)
class Backdrop:
    """Everything a background is drawn from, at whatever resolution."""

    family: str
    angle: float  # degrees
    colours: np.ndarray  # float32 (4, 3) RGB in [0, 1]
    coarse: np.ndarray  # float32 (6, 6) in [0, 1)
    fine: np.ndarray  # float32 (26, 26) in [0, 1)
    clutter: tuple[tuple[np.ndarray, np.ndarray], ...]  # polygons (V, 2) in image sides, and their RGB


def sample_backdrop(rng: np.random.Generator, appearance: Appearance) -> Backdrop:
    """A random background of an appearance."""
    hue = rng.uniform(0, 360)
    return Backdrop(
        family=str(rng.choice(appearance.background_families)),
        angle=rng.uniform(0, 360),
        colours=np.stack([_colour(rng, appearance, hue, 0.25, 0.85) for _ in range(4)]),
        coarse=rng.random((_COARSE, _COARSE), dtype=np.float32),
        fine=rng.random((_FINE, _FINE), dtype=np.float32),
        clutter=tuple(_sample_clutter(rng, appearance, hue) for _ in range(rng.integers(4, 12))),
    )


def draw_backdrop(backdrop: Backdrop, size: int) -> np.ndarray:
    """The background's colours, float32 (size, size, 3) RGB, about [0, 1]."""
    centres = (np.arange(size, dtype=np.float32) + 0.5) / size
    x, y = np.meshgrid(centres, centres)
    fine = _stretch(backdrop.fine, size)
    field = _FIELDS[backdrop.family](backdrop, x, y) + 0.1 * (fine - 0.5)
    place = np.clip(field, 0.0, 1.0) * 255  # on the ramp
    canvas = _ramp(backdrop.colours)[place.astype(np.uint8)]
    brightness = 0.88 + 0.24 * fine
    canvas *= brightness[:, :, None]
    for polygon, colour in backdrop.clutter:
        window, coverage = polygon_coverage(polygon * size, size)
        below = canvas[window]
        below += coverage[:, :, None] * (colour - below)
    return canvas


def _ramp(colours: np.ndarray) -> np.ndarray:
    """256 colours from the first to the last, float32 (256, 3)."""
    last = len(colours) - 1
    steps = np.linspace(0.0, 1.0, 256) * last
    channels = [np.interp(steps, range(last + 1), channel) for channel in colours.T]
    return np.stack(channels, axis=1).astype(np.float32)


def _colour(rng: np.random.Generator, look: Appearance, hue: float, dark: float, light: float) -> np.ndarray:
    hue = hue + rng.uniform(-70, 70)
    saturation = draw_from(rng, look.background_saturation)
    value = rng.uniform(dark, light)
    return hsv_to_rgb(hue, saturation, value)


def _sample_clutter(rng: np.random.Generator, appearance: Appearance, hue: float):
    centre = rng.uniform(0, 1, 2)
    turn = rng.uniform(0, 2 * np.pi)
    if rng.choice(appearance.clutter_families) == "pebbles":
        corners = np.arange(12) * (2 * np.pi / 12)
        radii = rng.uniform(0.012, 0.035, 2)
        circle = np.stack([np.cos(corners), np.sin(corners)], axis=1)
        outline = circle * radii
    else:
        length = rng.uniform(0.05, 0.14)
        thickness = rng.uniform(0.004, 0.010)
        bend = rng.uniform(-0.04, 0.04)
        outline = np.array([(-length, 0), (0, bend), (length, 0), (0, bend + thickness * 2)])
    cos = np.cos(turn)
    sin = np.sin(turn)
    rotation = np.array([(cos, sin), (-sin, cos)])
    colour = _colour(rng, appearance, hue, 0.15, 0.95)
    return outline @ rotation + centre, colour


def _stretch(lattice: np.ndarray, size: int) -> np.ndarray:
    return cv2.resize(lattice, (size, size), interpolation=cv2.INTER_CUBIC)


def _along(backdrop: Backdrop, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    turn = np.deg2rad(backdrop.angle)
    cos = np.float32(np.cos(turn))
    sin = np.float32(np.sin(turn))
    return 0.5 + 0.8 * ((x - 0.5) * cos + (y - 0.5) * sin)


def _gradient(backdrop: Backdrop, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    noise = _stretch(backdrop.coarse[:3, :3], len(x))
    return _along(backdrop, x, y) + 0.35 * (noise - 0.5)


def _clouds(backdrop: Backdrop, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    coarse = _stretch(backdrop.coarse, len(x))
    fine = _stretch(backdrop.fine[:12, :12], len(x))
    noise = 0.7 * coarse + 0.3 * fine
    return 0.5 + 1.4 * (noise - 0.5)


def _blobs(backdrop: Backdrop, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    field = 0.3 * _along(backdrop, x, y)
    for centre_x, centre_y, reach, level in backdrop.coarse.reshape(-1, 4):
        radius = 0.06 + 0.16 * reach
        distance = np.hypot(x - centre_x, y - centre_y) - radius
        inside = np.clip(0.5 - distance * 25, 0.0, 1.0)
        field += inside * (level - field)
    return field


def _hills(backdrop: Backdrop, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    ridges = cv2.resize(backdrop.coarse, (len(x), _COARSE), interpolation=cv2.INTER_CUBIC)
    field = 0.15 * y
    for layer in range(3):
        ridge = 0.18 + 0.24 * layer + 0.22 * ridges[layer]
        below = np.clip(0.5 + (y - ridge) * 60, 0.0, 1.0)
        field += 0.28 * below
    return field


def _mosaic(backdrop: Backdrop, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    sites = backdrop.coarse.reshape(-1, 3)
    warp = 0.05 * (_stretch(backdrop.fine, len(x)) - 0.5)
    warped_x = x + warp
    warped_y = y + warp
    distances = [(warped_x - site_x) ** 2 + (warped_y - site_y) ** 2 for site_x, site_y, _ in sites]
    nearest = np.argmin(distances, axis=0)
    field = sites[nearest, 2]
    return cv2.GaussianBlur(field, (0, 0), 0.005 * len(x))


def _dunes(backdrop: Backdrop, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    noise = _stretch(backdrop.coarse[:4, :4], len(x))
    phase = 2.2 * _along(backdrop, x, y) + 0.9 * noise
    windward = phase % 1.0
    return np.minimum(windward / 0.88, (1.0 - windward) / 0.12)


# Each maps the coordinates of the pixels, in image sides, to a place on the background's colour ramp.
_FIELDS = dict(gradient=_gradient, clouds=_clouds, blobs=_blobs, hills=_hills, mosaic=_mosaic, dunes=_dunes)
