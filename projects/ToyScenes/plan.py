"""What is in a scene: objects, light and background as numbers, independent of any resolution.

Lengths in the image are in image sides: (0, 0) is the top left corner, (1, 1) the bottom right one.
"""

from dataclasses import dataclass

import numpy as np

from projects.ToyScenes.appearance import Appearance, draw_from, hsv_to_rgb
from projects.ToyScenes.backdrop import Backdrop, sample_backdrop
from projects.ToyScenes.classes import CLASS_NAMES, shape_of, unit_polygon
from projects.ToyScenes.coverage import polygon_coverage

OBJECTS_PER_SCENE = (2, 8)
RELIEF = 0.05  # metres by which an object bulges towards the camera
_GAP = 0.06  # metres between the distances of two objects, at least; more than RELIEF
_MIN_VISIBLE_SHARE = 0.45  # of an object's own area
_MIN_VISIBLE_AREA = 0.008  # of the image
_VISIBILITY_PX = 64  # resolution at which visibility is judged, so that it is the same for every size
_PLACEMENTS = 20  # tries per object


@dataclass(frozen=True)
class Texture:
    """Two tones in a pattern that is fixed to the object."""

    period: float  # in sides of the object
    duty: float  # share of the area that has the first tone
    angle: float  # degrees, in the object's frame
    phase: tuple[float, float]  # in periods
    row_shift: float  # in periods, dots only
    tones: np.ndarray  # float32 (2, 3) RGB in [0, 1]


@dataclass(frozen=True)
class ToyObject:
    """One object: what it is, where it is, how it looks."""

    class_id: int
    centre: tuple[float, float]  # x, y
    distance: float  # metres
    extent: float  # metres, square root of its area
    rotation: float  # degrees, clockwise
    aspect: float  # width over height, area kept
    texture: Texture

    @property
    def side(self) -> float:
        """Square root of the object's area in the image, in image sides (one per metre at one metre)."""
        return self.extent / self.distance

    def outline(self) -> np.ndarray:
        """The outline in the image, float64 (V, 2), x and y in image sides."""
        turn = np.deg2rad(self.rotation)
        rotate = np.array([(np.cos(turn), -np.sin(turn)), (np.sin(turn), np.cos(turn))])
        stretch = self.side * np.array([self.aspect**0.5, self.aspect**-0.5])
        return (unit_polygon(shape_of(self.class_id)) * stretch) @ rotate.T + self.centre


@dataclass(frozen=True)
class Light:
    """The only light of a scene."""

    azimuth: float  # degrees, see Appearance.light_azimuth
    contrast: float  # 0 is flat, 1 is strong
    warmth: float


@dataclass(frozen=True)
class ScenePlan:
    """All that ``draw_scene`` needs."""

    objects: tuple[ToyObject, ...]
    backdrop: Backdrop
    light: Light
    far: tuple[float, float]  # metres, the background's distance at the top and at the bottom edge


def plan_object_centric(rng: np.random.Generator, look: Appearance, class_id: int) -> ScenePlan:
    """One large object of the given class, near the centre."""
    centre = rng.uniform(0.43, 0.57, 2)
    thing = _sample_object(rng, look, class_id, centre, distance=rng.uniform(1.05, 1.40))
    return _sample_surroundings(rng, look, (thing,))


def plan_scene_centric(rng: np.random.Generator, look: Appearance, weights: np.ndarray) -> ScenePlan:
    """Two to eight objects, nearest first, of classes drawn with probabilities ``weights`` (10,).

    From near to far, each object is redrawn until enough of it can be seen past the nearer ones and the
    edge of the image; one that finds no place in 20 tries is left out.
    """
    count = rng.integers(*OBJECTS_PER_SCENE, endpoint=True)
    distances = np.sort(rng.uniform(1.45, 2.75, count)) + _GAP * np.arange(count)
    free = np.ones((_VISIBILITY_PX, _VISIBILITY_PX), bool)
    placed: list[ToyObject] = []
    for distance in distances:
        for _ in range(_PLACEMENTS):
            class_id = int(rng.choice(len(CLASS_NAMES), p=weights))
            thing = _sample_object(rng, look, class_id, rng.uniform(0.08, 0.92, 2), float(distance))
            window, coverage = polygon_coverage(thing.outline() * _VISIBILITY_PX, _VISIBILITY_PX)
            visible = np.count_nonzero(free[window] & (coverage >= 0.5)) / free.size
            if visible >= max(_MIN_VISIBLE_AREA, _MIN_VISIBLE_SHARE * thing.side**2):
                free[window] &= coverage < 0.5
                placed.append(thing)
                break
    return _sample_surroundings(rng, look, tuple(placed))


def _sample_object(
    rng: np.random.Generator, look: Appearance, class_id: int, centre: np.ndarray, distance: float
) -> ToyObject:
    rotation = rng.uniform(-25, 25)
    return ToyObject(
        class_id=class_id,
        centre=(float(centre[0]), float(centre[1])),
        distance=distance,
        extent=rng.uniform(0.52, 0.66),
        rotation=rotation,
        aspect=float(np.exp(rng.uniform(-0.2, 0.2))),
        texture=_sample_texture(rng, look, rotation),
    )


def _sample_texture(rng: np.random.Generator, look: Appearance, rotation: float) -> Texture:
    hue = rng.uniform(0, 360)
    step = draw_from(rng, look.hue_step) * rng.choice((-1, 1))
    dark = hsv_to_rgb(hue, draw_from(rng, look.object_saturation), rng.uniform(0.15, 0.40))
    light = hsv_to_rgb(hue + step, draw_from(rng, look.object_saturation), rng.uniform(0.80, 1.0))
    return Texture(
        period=draw_from(rng, look.texture_period),
        duty=draw_from(rng, look.texture_duty),
        angle=draw_from(rng, look.texture_angle) - rotation,
        phase=(rng.uniform(), rng.uniform()),
        row_shift=draw_from(rng, look.dot_row_shift),
        tones=np.stack([dark, light] if rng.random() < 0.5 else [light, dark]),
    )


def _sample_surroundings(rng: np.random.Generator, look: Appearance, objects: tuple[ToyObject, ...]) -> ScenePlan:
    light = Light(
        azimuth=draw_from(rng, look.light_azimuth),
        contrast=draw_from(rng, look.light_contrast),
        warmth=draw_from(rng, look.light_warmth),
    )
    far = (rng.uniform(7.0, 10.0), rng.uniform(4.0, 6.0))
    return ScenePlan(objects, sample_backdrop(rng, look), light, far)
