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
    def masks(self) -> np.ndarray:
        """Visible pixels of each object, bool (N, H, W)."""
        return self.instances == np.arange(1, len(self.class_ids) + 1).reshape(-1, 1, 1)

    @property
    def boxes(self) -> np.ndarray:
        """Tight boxes around the visible pixels, int32 (N, 4): x0, y0 inclusive, x1, y1 exclusive.

        All zero for an object of which nothing is visible.
        """
        rectangles = [cv2.boundingRect(mask.astype(np.uint8)) for mask in self.masks]
        return np.array([(x, y, x + width, y + height) for x, y, width, height in rectangles], np.int32).reshape(-1, 4)

    @property
    def semantic(self) -> np.ndarray:
        """Class of each pixel, uint8 (H, W): 0 background, else class id + 1, at most 10."""
        return np.array([0, *(c + 1 for c in self.class_ids)], np.uint8)[self.instances]

    @property
    def borders(self) -> np.ndarray:
        """Pixels of which one of the four neighbours shows an object that they do not show, bool (H, W).

        A band of one pixel around each object, outside it; where two objects touch, one pixel of each.
        """
        instances = self.instances.astype(np.uint16)
        objects = np.where(instances == 0, np.uint16(0xFFFF), instances)
        cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
        highest, lowest = cv2.dilate(instances, cross), cv2.erode(objects, cross)
        return (highest != instances) | (lowest != objects)


def draw_scene(plan: ScenePlan, size: int) -> Scene:
    """Draws ``plan`` on ``size`` x ``size`` pixels; nearer objects hide farther ones."""
    layers = _Layers(plan, size)
    for index in sorted(range(len(plan.objects)), key=lambda i: -plan.objects[i].distance):
        layers.add(plan.objects[index], index + 1)
    warmth = plan.light_warmth
    lit = layers.canvas * np.array([1 + warmth, 1, 1 - warmth], np.float32)
    image = np.clip(lit * 255 + 0.5, 0, 255).astype(np.uint8)
    return Scene(image, layers.instances, [thing.class_id for thing in plan.objects], layers.depth)


class _Layers:
    """The picture while it is painted, from far to near."""

    def __init__(self, plan: ScenePlan, size: int):
        turn = np.deg2rad(plan.light_azimuth)
        self.towards = np.array([np.cos(turn), np.sin(turn)], np.float32)
        self.contrast = np.float32(plan.light_contrast)
        self.size = size
        x, y = _pixel_centres((slice(0, size), slice(0, size)))
        slope = ((x - size / 2) * self.towards[0] + (y - size / 2) * self.towards[1]) / size
        self.canvas = draw_backdrop(plan.backdrop, size) * (1 + 0.35 * self.contrast * slope)[:, :, None]
        self.instances = np.zeros((size, size), np.int32)
        top, bottom = plan.far
        self.depth = np.repeat(top + (bottom - top) * (y / size), size, axis=1).astype(np.float32)

    def add(self, thing: ToyObject, instance: int) -> None:
        side = thing.side * self.size
        window, coverage = polygon_coverage(thing.outline() * self.size, self.size, margin=0.3 * side)
        if coverage.size == 0:
            return
        height = cv2.GaussianBlur(coverage, (0, 0), _ROUNDING * side)
        canvas = self.canvas[window]
        canvas *= (1 - self._shadow(height, side))[:, :, None]
        x, y = _pixel_centres(window)
        x, y = (x - thing.centre[0] * self.size) / side, (y - thing.centre[1] * self.size) / side
        colour = _texture_colours(thing, x, y, side) * self._shading(height, x, y, side)[:, :, None]
        canvas += coverage[:, :, None] * (colour - canvas)
        inside = coverage >= 0.5
        self.instances[window][inside] = instance
        self.depth[window][inside] = thing.distance - RELIEF * height[inside]

    def _shadow(self, height: np.ndarray, side: float) -> np.ndarray:
        away = -_SHADOW_REACH * side * self.towards
        shift = np.array([(1, 0, away[0]), (0, 1, away[1])], np.float32)
        fallen = cv2.warpAffine(height, shift, height.shape[::-1], borderMode=cv2.BORDER_REPLICATE)
        return _SHADOW_DEPTH * fallen

    def _shading(self, height: np.ndarray, x: np.ndarray, y: np.ndarray, side: float) -> np.ndarray:
        """Brightness: a slope over the whole object, and an edge that bends away from the viewer."""
        across = x * self.towards[0] + y * self.towards[1]
        bend_y, bend_x = np.gradient(height) if min(height.shape) > 1 else (0.0, 0.0)
        facing = -(bend_x * self.towards[0] + bend_y * self.towards[1]) * side
        return np.clip(1 + self.contrast * (0.45 * across + 0.15 * facing), 0.2, 1.6)


def _pixel_centres(window: tuple[slice, slice]) -> tuple[np.ndarray, np.ndarray]:
    """x as a row (1, W) and y as a column (H, 1), float32, in pixels."""
    y, x = np.ogrid[window]
    return x.astype(np.float32) + 0.5, y.astype(np.float32) + 0.5


def _texture_colours(thing: ToyObject, x: np.ndarray, y: np.ndarray, side: float) -> np.ndarray:
    """The object's surface, float32 (H, W, 3), at x and y in sides from its centre."""
    texture = thing.texture
    turn = np.deg2rad(texture.angle + thing.rotation)
    cos, sin = np.float32(np.cos(turn) / texture.period), np.float32(np.sin(turn) / texture.period)
    u = x * cos + y * sin + np.float32(texture.phase[0])
    if texture_of(thing.class_id) == "striped":
        outside = np.abs(u % 1 - 0.5) - texture.duty / 2
    else:
        v = y * cos - x * sin + np.float32(texture.phase[1])
        u += np.float32(texture.row_shift) * np.floor(v)
        outside = np.hypot(u % 1 - 0.5, v % 1 - 0.5) - (texture.duty / np.pi) ** 0.5
    second = np.clip(0.5 + outside * np.float32(texture.period * side), 0, 1)[:, :, None]
    first_tone, second_tone = texture.tones
    return first_tone + second * (second_tone - first_tone)
