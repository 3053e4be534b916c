"""Backgrounds: what lies behind the objects, as parameters and as pixels."""

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from projects.ToyScenes.appearance import Appearance, draw_from, hsv_to_rgb
from projects.ToyScenes.coverage import polygon_coverage

_COARSE, _FINE = 6, 26  # nodes on a side of the two lattices of random numbers


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
    field = np.clip(_FIELDS[backdrop.family](backdrop, x, y) + 0.1 * (fine - 0.5), 0.0, 1.0)
    steps = np.linspace(0.0, 1.0, 256) * (len(backdrop.colours) - 1)
    ramp = np.stack([np.interp(steps, range(4), channel) for channel in backdrop.colours.T], axis=1)
    canvas = ramp.astype(np.float32)[(field * 255).astype(np.uint8)]
    canvas *= (0.88 + 0.24 * fine)[:, :, None]
    for polygon, colour in backdrop.clutter:
        window, coverage = polygon_coverage(polygon * size, size)
        canvas[window] += coverage[:, :, None] * (colour - canvas[window])
    return canvas


def _colour(rng: np.random.Generator, look: Appearance, hue: float, dark: float, light: float) -> np.ndarray:
    hue = hue + rng.uniform(-70, 70)
    return hsv_to_rgb(hue, draw_from(rng, look.background_saturation), rng.uniform(dark, light))


def _sample_clutter(rng: np.random.Generator, appearance: Appearance, hue: float):
    centre = rng.uniform(0, 1, 2)
    turn = rng.uniform(0, 2 * np.pi)
    if rng.choice(appearance.clutter_families) == "pebbles":
        corners = np.arange(12) * (2 * np.pi / 12)
        radii = rng.uniform(0.012, 0.035, 2)
        outline = np.stack([np.cos(corners), np.sin(corners)], axis=1) * radii
    else:
        length, thickness = rng.uniform(0.05, 0.14), rng.uniform(0.004, 0.010)
        bend = rng.uniform(-0.04, 0.04)
        outline = np.array([(-length, 0), (0, bend), (length, 0), (0, bend + thickness * 2)])
    rotation = np.array([(np.cos(turn), np.sin(turn)), (-np.sin(turn), np.cos(turn))])
    return outline @ rotation + centre, _colour(rng, appearance, hue, 0.15, 0.95)


def _stretch(lattice: np.ndarray, size: int) -> np.ndarray:
    return cv2.resize(lattice, (size, size), interpolation=cv2.INTER_CUBIC)


def _along(backdrop: Backdrop, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    turn = np.deg2rad(backdrop.angle)
    return 0.5 + 0.8 * ((x - 0.5) * np.float32(np.cos(turn)) + (y - 0.5) * np.float32(np.sin(turn)))


def _gradient(backdrop: Backdrop, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _along(backdrop, x, y) + 0.35 * (_stretch(backdrop.coarse[:3, :3], len(x)) - 0.5)


def _clouds(backdrop: Backdrop, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    noise = 0.7 * _stretch(backdrop.coarse, len(x)) + 0.3 * _stretch(backdrop.fine[:12, :12], len(x))
    return 0.5 + 1.4 * (noise - 0.5)


def _blobs(backdrop: Backdrop, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    field = 0.3 * _along(backdrop, x, y)
    for centre_x, centre_y, reach, level in backdrop.coarse.reshape(-1, 4):
        distance = np.hypot(x - centre_x, y - centre_y) - (0.06 + 0.16 * reach)
        field += np.clip(0.5 - distance * 25, 0.0, 1.0) * (level - field)
    return field


def _hills(backdrop: Backdrop, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    ridges = cv2.resize(backdrop.coarse, (len(x), _COARSE), interpolation=cv2.INTER_CUBIC)
    field = 0.15 * y
    for layer in range(3):
        ridge = 0.18 + 0.24 * layer + 0.22 * ridges[layer]
        field += 0.28 * np.clip(0.5 + (y - ridge) * 60, 0.0, 1.0)
    return field


def _mosaic(backdrop: Backdrop, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    sites = backdrop.coarse.reshape(-1, 3)
    warp = 0.05 * (_stretch(backdrop.fine, len(x)) - 0.5)
    distances = [(x + warp - site_x) ** 2 + (y + warp - site_y) ** 2 for site_x, site_y, _ in sites]
    field = sites[np.argmin(distances, axis=0), 2]
    return cv2.GaussianBlur(field, (0, 0), 0.005 * len(x))


def _dunes(backdrop: Backdrop, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    phase = 2.2 * _along(backdrop, x, y) + 0.9 * _stretch(backdrop.coarse[:4, :4], len(x))
    windward = phase % 1.0
    return np.minimum(windward / 0.88, (1.0 - windward) / 0.12)


# Each maps the coordinates of the pixels, in image sides, to a place on the background's colour ramp.
_FIELDS: dict[str, Callable[[Backdrop, np.ndarray, np.ndarray], np.ndarray]] = {
    "gradient": _gradient,
    "clouds": _clouds,
    "blobs": _blobs,
    "hills": _hills,
    "mosaic": _mosaic,
    "dunes": _dunes,
}
