"""Draws a planned scene: the picture, who is where, and how far away."""

from dataclasses import dataclass

import cv2
import numpy as np

from projects.ToyScenes.appearance import draw_backdrop
from projects.ToyScenes.classes import polygon_coverage, texture_of
from projects.ToyScenes.plan import RELIEF, ScenePlan, ToyObject

_SHADOW_REACH = 0.10  # in sides of the object
_SHADOW_DEPTH = 0.45
_ROUNDING = 0.07  # in sides of the object: how far its edge bends away


@dataclass(frozen=True)
class Scene:
    """A drawn scene of H x W pixels; every array is exact, none is read back from a compressed image."""

    image: np.ndarray  # uint8 (H, W, 3) RGB
    instances: np.ndarray  # int32 (H, W): 0 background, i the i-th object, counted from 1
    class_ids: list[int]  # of the objects in order, indices into CLASS_NAMES
    depth: np.ndarray  # float32 (H, W) metres, > 0

    @property
    def rgbd(self) -> np.ndarray:
        """The image with a fourth channel, uint8 (H, W, 4): 255 / depth, as a stereo camera sees it.

        Nothing is nearer than a metre.
        """
        nearness = np.round(255 / self.depth).astype(np.uint8)
        return np.dstack([self.image, nearness])

    @property
    def masks(self) -> np.ndarray:
        """Visible pixels of each object, bool (N, H, W)."""
        numbers = np.arange(1, len(self.class_ids) + 1)
        return self.instances == numbers.reshape(-1, 1, 1)

    @property
    def boxes(self) -> np.ndarray:
        """Tight boxes around the visible pixels, int32 (N, 4): x0, y0 inclusive, x1, y1 exclusive.

        All zero for an object of which nothing is visible.
        """
        boxes = []
        for mask in self.masks:
            x, y, width, height = cv2.boundingRect(mask.astype(np.uint8))
            boxes.append((x, y, x + width, y + height))
        return np.array(boxes, np.int32).reshape(-1, 4)

    @property
    def semantic(self) -> np.ndarray:
        """Class of each pixel, uint8 (H, W): 0 background, else class id + 1, at most 10."""
        class_of = np.array([0, *(c + 1 for c in self.class_ids)], np.uint8)  # by instance
        return class_of[self.instances]

    @property
    def borders(self) -> np.ndarray:
        """Pixels of which one of the four neighbours shows an object that they do not show, bool (H, W).

        A band of one pixel around each object, outside it; where two objects touch, one pixel of each.
        """
        instances = self.instances.astype(np.uint16)
        objects = np.where(instances == 0, np.uint16(0xFFFF), instances)
        cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
        highest = cv2.dilate(instances, cross)
        lowest = cv2.erode(objects, cross)
        return (highest != instances) | (lowest != objects)


def draw_scene(plan: ScenePlan, size: int) -> Scene:
    """Draws ``plan`` on ``size`` x ``size`` pixels; nearer objects hide farther ones."""
    layers = _Layers(plan, size)
    numbered = enumerate(plan.objects, start=1)
    for instance, thing in sorted(numbered, key=lambda pair: -pair[1].distance):
        layers.add(thing, instance)
    warmth = plan.light_warmth
    light = np.array([1 + warmth, 1, 1 - warmth], np.float32)  # RGB
    lit = layers.canvas * light
    image = np.clip(lit * 255 + 0.5, 0, 255).astype(np.uint8)
    class_ids = [thing.class_id for thing in plan.objects]
    return Scene(image, layers.instances, class_ids, layers.depth)


class _Layers:
    """The picture while it is painted, from far to near."""

    def __init__(self, plan: ScenePlan, size: int):
        turn = np.deg2rad(plan.light_azimuth)
        self.towards = np.array([np.cos(turn), np.sin(turn)], np.float32)
        self.contrast = np.float32(plan.light_contrast)
        self.size = size
        x, y = _pixel_centres((slice(0, size), slice(0, size)))
        slope = self._along_light(x - size / 2, y - size / 2) / size
        brightness = 1 + 0.35 * self.contrast * slope
        self.canvas = draw_backdrop(plan.backdrop, size) * brightness[:, :, None]
        self.instances = np.zeros((size, size), np.int32)
        top, bottom = plan.far
        of_rows = top + (bottom - top) * (y / size)
        self.depth = np.repeat(of_rows, size, axis=1).astype(np.float32)

    def add(self, thing: ToyObject, instance: int) -> None:
        side = thing.side * self.size
        outline = thing.outline() * self.size
        window, coverage = polygon_coverage(outline, self.size, margin=0.3 * side)
        if coverage.size == 0:
            return
        height = cv2.GaussianBlur(coverage, (0, 0), _ROUNDING * side)
        canvas = self.canvas[window]
        lit = 1 - self._shadow(height, side)
        canvas *= lit[:, :, None]
        x, y = _pixel_centres(window)
        centre_x, centre_y = (place * self.size for place in thing.centre)
        x = (x - centre_x) / side
        y = (y - centre_y) / side
        shading = self._shading(height, x, y, side)
        colour = _texture_colours(thing, x, y, side) * shading[:, :, None]
        canvas += coverage[:, :, None] * (colour - canvas)
        inside = coverage >= 0.5
        self.instances[window][inside] = instance
        relief = RELIEF * height[inside]
        self.depth[window][inside] = thing.distance - relief

    def _along_light(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """How far (x, y) lies towards the light."""
        return x * self.towards[0] + y * self.towards[1]

    def _shadow(self, height: np.ndarray, side: float) -> np.ndarray:
        away_x, away_y = -_SHADOW_REACH * side * self.towards
        shift = np.array([(1, 0, away_x), (0, 1, away_y)], np.float32)
        fallen = cv2.warpAffine(height, shift, height.shape[::-1], borderMode=cv2.BORDER_REPLICATE)
        return _SHADOW_DEPTH * fallen

    def _shading(self, height: np.ndarray, x: np.ndarray, y: np.ndarray, side: float) -> np.ndarray:
        """Brightness: a slope over the whole object, and an edge that bends away from the viewer."""
        across = self._along_light(x, y)
        bend_y, bend_x = np.gradient(height) if min(height.shape) > 1 else (0.0, 0.0)
        facing = -self._along_light(bend_x, bend_y) * side
        brightness = 1 + self.contrast * (0.45 * across + 0.15 * facing)
        return np.clip(brightness, 0.2, 1.6)


def _pixel_centres(window: tuple[slice, slice]) -> tuple[np.ndarray, np.ndarray]:
    """x as a row (1, W) and y as a column (H, 1), float32, in pixels."""
    y, x = np.ogrid[window]
    return x.astype(np.float32) + 0.5, y.astype(np.float32) + 0.5


def _texture_colours(thing: ToyObject, x: np.ndarray, y: np.ndarray, side: float) -> np.ndarray:
    """The object's surface, float32 (H, W, 3), at x and y in sides from its centre."""
    texture = thing.texture
    turn = np.deg2rad(texture.angle + thing.rotation)
    cos = np.float32(np.cos(turn) / texture.period)
    sin = np.float32(np.sin(turn) / texture.period)
    phase_u, phase_v = map(np.float32, texture.phase)
    u = x * cos + y * sin + phase_u  # in periods
    if texture_of(thing.class_id) == "striped":
        half_stripe = texture.duty / 2
        outside = np.abs(u % 1 - 0.5) - half_stripe
    else:
        v = y * cos - x * sin + phase_v
        u += np.float32(texture.row_shift) * np.floor(v)
        radius = (texture.duty / np.pi) ** 0.5
        from_centre = np.hypot(u % 1 - 0.5, v % 1 - 0.5)
        outside = from_centre - radius
    pixels_outside = outside * np.float32(texture.period * side)
    second = np.clip(0.5 + pixels_outside, 0, 1)[:, :, None]
    first_tone, second_tone = texture.tones
    return first_tone + second * (second_tone - first_tone)
