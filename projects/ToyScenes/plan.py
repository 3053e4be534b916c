"""What is in an image or a video: objects, light and background as numbers, independent of any resolution.

Lengths in the image are in image sides: (0, 0) is the top left corner, (1, 1) the bottom right one.
"""

import enum
from dataclasses import dataclass, replace

import numpy as np

from projects.ToyScenes.appearance import HELDOUT, TRAIN, Appearance, Backdrop, draw_from, hsv_to_rgb, sample_backdrop
from projects.ToyScenes.classes import CLASS_NAMES, class_quotas, class_weights, polygon_coverage, unit_polygon
from revisit.data.randomness import Stream, counter_rng

GENERATOR_VERSION = 1  # the generator is frozen: whatever changes a picture must change this number
OBJECTS_PER_SCENE = (2, 8)
RELIEF = 0.05  # metres by which an object bulges towards the camera
_GAP = 0.06  # metres between the distances of two objects, at least; more than RELIEF
_MIN_VISIBLE_SHARE = 0.45  # of an object's own area
_MIN_VISIBLE_AREA = 0.008  # of the image
_VISIBILITY_PX = 64  # resolution at which visibility is judged, so that it is the same for every size
_PLACEMENTS = 20  # tries per object

NUM_FRAMES = 20  # of a video
_MOST_MOVING = 3  # objects in a video
_TURN = (-40.0, 40.0)  # degrees, from the first frame to the last


class Split(enum.IntEnum):
    """An image set. Numbers are part of the random stream: never renumber."""

    OBJECT_TRAIN = 0
    OBJECT_HELDOUT = 1
    SCENE_TRAIN = 2
    SCENE_HELDOUT = 3

    @property
    def is_heldout(self) -> bool:
        return self in (Split.OBJECT_HELDOUT, Split.SCENE_HELDOUT)

    @property
    def is_object_centric(self) -> bool:
        return self in (Split.OBJECT_TRAIN, Split.OBJECT_HELDOUT)

    def num_images(self, num_train: int) -> int:
        """Images in this set when each train set has ``num_train``."""
        return num_train // 4 if self.is_heldout else num_train


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
        return (unit_polygon(self.class_id) * stretch) @ rotate.T + self.centre


@dataclass(frozen=True)
class ScenePlan:
    """All that ``draw_scene`` needs."""

    objects: tuple[ToyObject, ...]
    light_azimuth: float  # of the only light, in degrees: see Appearance
    light_contrast: float  # 0 is flat, 1 is strong
    light_warmth: float
    far: tuple[float, float]  # metres, the background's distance at the top and at the bottom edge
    backdrop: Backdrop


def object_classes(split: Split, num_train: int, long_tailed: bool) -> np.ndarray:
    """Class id of each image of an object-centric set, int64 (images,). Held-out sets stay uniform."""
    quotas = class_quotas(split.num_images(num_train), long_tailed and not split.is_heldout)
    return np.repeat(np.arange(len(quotas)), quotas)


def plan_image(seed: int, split: Split, index: int, num_train: int = 2000, long_tailed: bool = False) -> ScenePlan:
    """The scene of image ``index`` of a set: a function of its arguments alone.

    Object-centric images show one large object near the centre, whose class follows from ``num_train``, the images of
    each train set, and from ``long_tailed``: whether classes of train sets follow ``class_weights(True)``.
    """
    rng = counter_rng(seed, Stream.TOY_SCENE, split, index)
    look = HELDOUT if split.is_heldout else TRAIN
    if not split.is_object_centric:
        return _plan_scene(rng, look, class_weights(long_tailed and not split.is_heldout))
    class_id = int(object_classes(split, num_train, long_tailed)[index])
    centre = rng.uniform(0.43, 0.57, 2)
    thing = _sample_object(rng, look, class_id, centre, distance=rng.uniform(1.05, 1.40))
    return _sample_surroundings(rng, look, (thing,))


def num_videos(num_train: int) -> int:
    """Videos that go with train sets of so many images: one for 250, but 2 to 8."""
    return min(8, max(2, num_train // 250))


def plan_video(seed: int, index: int) -> list[ScenePlan]:
    """The scenes of a video's frames: a function of its arguments alone, in held-out appearance.

    Each of its two or three objects moves evenly to where the next one started, so that they pass each other, the
    nearer one in front. Camera, background and light stay.
    """
    rng = counter_rng(seed, Stream.TOY_VIDEO, index)
    scene = _plan_scene(rng, HELDOUT, class_weights(long_tailed=False))
    objects = scene.objects[:_MOST_MOVING]
    starts = np.array([thing.centre for thing in objects])
    ends = np.roll(starts, -1, axis=0) if len(objects) > 1 else 1 - starts
    turns = rng.uniform(*_TURN, len(objects))
    plans = []
    for progress in np.linspace(0, 1, NUM_FRAMES):
        centres = (1 - progress) * starts + progress * ends
        moved = tuple(
            replace(thing, centre=(float(x), float(y)), rotation=thing.rotation + progress * float(turn))
            for thing, (x, y), turn in zip(objects, centres, turns, strict=True)
        )
        plans.append(replace(scene, objects=moved))
    return plans


def _plan_scene(rng: np.random.Generator, look: Appearance, weights: np.ndarray) -> ScenePlan:
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
    return ScenePlan(
        objects,
        light_azimuth=draw_from(rng, look.light_azimuth),
        light_contrast=draw_from(rng, look.light_contrast),
        light_warmth=draw_from(rng, look.light_warmth),
        far=(rng.uniform(7.0, 10.0), rng.uniform(4.0, 6.0)),
        backdrop=sample_backdrop(rng, look),
    )
