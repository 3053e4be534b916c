"""Labels of an image as each of its windows has them: boxes, outlines, run lengths and keypoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from projects.Tiles.windows import common, meeting
from revisit.boxes.boxes import Boxes, sides_of
from revisit.data.finetuning.ignored import IGNORED
from revisit.data.sources.coco_truth import MIN_SIDE, run_lengths
from revisit.plugins import require_package

from detectron2.structures import BoxMode

KEPT_SHARE = 0.5  # of an object's area in a window, from which on it is one of the window's objects
_LEAST_HOLE = 1e-6  # px^2; a smaller one is filled


def cut(annotations: Sequence[dict], windows: np.ndarray, height: int, width: int) -> list[list[dict]]:
    """Detectron2's annotations of each window, in px from its left and top.

    An object has the area of its mask, or else of its box, inside the image. Where a window has KEPT_SHARE of that, it
    has the object, with what of it lies there. The rest of an object, and every part of a crowd, is ``iscrowd`` and
    ``ignored``: nothing is learned there, and nothing that is found there is wrong. Parts narrower than MIN_SIDE are
    left out. Keypoints outside are not labelled (0, 0, 0).

    Args:
        annotations: of the whole image, in any of BoxMode; masks are outlines or run lengths.
        windows: (n, 4) left, top, right and bottom in px, inside the image.
        height, width: of the image, px.

    Returns:
        n lists. Boxes are XYXY_ABS; outlines stay outlines, of which a hole is cut open, and run lengths run lengths.

    Raises:
        UserError: outlines cross a window's border, and shapely, which cuts them, is not installed.
    """
    of_windows = [[] for _ in windows]
    image = np.array([0, 0, width, height])
    for each, box in zip(annotations, Boxes.of_annotations(annotations).xyxy, strict=True):
        whole = _shape_of(each, box).within(image)
        if whole is None:
            continue
        for number in meeting(whole.bounds, windows.T):
            window = windows[number]
            if part := whole.within(window):
                of_windows[number].append(_annotation(each, box, whole, part, window))
    return of_windows


def _annotation(each: dict, box: np.ndarray, whole: _Shape, part: _Shape, window: np.ndarray) -> dict:
    """What a window has of an object."""
    is_whole = part is whole  # then the box is the one that was drawn, which need not be the mask's
    bounds = common(box, window) if is_whole else part.bounds
    moved = bounds - np.tile(window[:2], 2)
    made = {**each, "bbox": moved.tolist(), "bbox_mode": BoxMode.XYXY_ABS, **part.mask_in(window)}
    if "keypoints" in each:
        made["keypoints"] = _keypoints(each["keypoints"], window)
    is_object = is_whole or part.area >= KEPT_SHARE * whole.area
    if each.get("iscrowd") or not is_object:
        made |= {"iscrowd": 1, IGNORED: True}
    return made


def _keypoints(values: Sequence[float], window: np.ndarray) -> list[float]:
    left, top, right, bottom = window
    points = np.reshape(values, (-1, 3)) - (left, top, 0)
    outside = (points[:, :2] < 0) | (points[:, :2] >= (right - left, bottom - top))
    points[outside.any(axis=1)] = 0
    return points.ravel().tolist()


def _shape_of(annotation: dict, box: np.ndarray) -> _Shape:
    mask = annotation.get("segmentation")
    if not mask:
        return _Box(box)
    return ColumnRuns.of(mask) if isinstance(mask, dict) else _Outlines(mask)


@dataclass(frozen=True)
class _Box:
    bounds: np.ndarray  # (4,) xyxy, px of the image

    @property
    def area(self) -> float:
        return float(sides_of(self.bounds).prod())

    def within(self, window: np.ndarray) -> _Box | None:
        """What of it is in a window: itself where all of it is; None of next to nothing."""
        inside = common(self.bounds, window)
        if np.array_equal(inside, self.bounds):
            return self
        return _Box(inside) if _is_wide(inside) else None

    def mask_in(self, window: np.ndarray) -> dict:
        return {}


def _is_wide(box: np.ndarray) -> bool:
    return bool(sides_of(box).min() >= MIN_SIDE)


@dataclass(frozen=True)
class _Outlines:
    """An object is what at least one of them encloses, by the even-odd rule, as pycocotools draws it."""

    rings: Sequence[Sequence[float]]  # each x, y, x, y, ... in px of the image

    @cached_property
    def bounds(self) -> np.ndarray:
        corners = np.concatenate([np.reshape(ring, (-1, 2)) for ring in self.rings])
        return np.concatenate([corners.min(axis=0), corners.max(axis=0)])

    @cached_property
    def geometry(self) -> Any:
        """Shapely's, valid."""
        shapely = _shapely()
        rings = [shapely.make_valid(shapely.Polygon(np.reshape(ring, (-1, 2)))) for ring in self.rings]
        return shapely.union_all(polygons(rings))

    @cached_property
    def area(self) -> float:
        return float(self.geometry.area)

    def within(self, window: np.ndarray) -> _Outlines | None:
        """As ``_Box.within``."""
        if np.array_equal(common(self.bounds, window), self.bounds):
            return self
        rings = rings_of(self.geometry.intersection(_shapely().box(*window)))
        made = _Outlines(rings)
        return made if rings and _is_wide(made.bounds) else None

    def mask_in(self, window: np.ndarray) -> dict:
        moved = [np.reshape(ring, (-1, 2)) - window[:2] for ring in self.rings]
        return {"segmentation": [corners.ravel().tolist() for corners in moved]}


def _shapely() -> ModuleType:
    return require_package("shapely", "outlines of objects are cut by shapely: pip install 'revisit-detectron2[geo]'")


def polygons(geometries: Any) -> list:
    """Those of shapely's geometries, or of what these hold, that have an area."""
    shapely = _shapely()
    parts = shapely.get_parts(shapely.get_parts(geometries))
    return [part for part in parts if part.geom_type == "Polygon" and part.area > 0]


def rings_of(geometries: Any) -> list[np.ndarray]:
    """COCO's outlines of what has an area, each x, y, x, y, ..."""
    solids = [solid for polygon in polygons(geometries) for solid in _without_holes(polygon)]
    return [np.array(solid.exterior.coords)[:-1].ravel() for solid in solids]


def _without_holes(polygon: Any) -> list:
    """Polygons that are the same together, because COCO's have no holes: it is cut through each hole."""
    shapely = _shapely()
    hole = next((ring for ring in polygon.interiors if shapely.Polygon(ring).area > _LEAST_HOLE), None)
    if hole is None:
        return [polygon]
    left, top, right, bottom = polygon.bounds
    middle = (hole.bounds[0] + hole.bounds[2]) / 2
    halves = shapely.box([left, middle], top, [middle, right], bottom)
    return [solid for part in polygons(shapely.intersection(polygon, halves)) for solid in _without_holes(part)]


@dataclass(frozen=True)
class ColumnRuns:
    """Of a mask: parts of columns, by column and row; it is never drawn."""

    columns: np.ndarray  # (n,) int64, rising
    tops: np.ndarray  # (n,) first row
    bottoms: np.ndarray  # (n,) row after the last one

    @classmethod
    def of(cls, mask: dict) -> ColumnRuns:
        """Of run lengths as COCO has them: counts, or their text."""
        counts, height = mask["counts"], mask["size"][0]
        text = counts.decode() if isinstance(counts, bytes) else counts
        runs = run_lengths(text) if isinstance(text, str) else text
        places = np.cumsum(runs)
        ends = places[1::2]  # the first run is background
        starts = places[::2][: len(ends)]
        starts, ends = starts[starts < ends], ends[starts < ends]
        first, last = starts // height, (ends - 1) // height
        spanned = last - first + 1
        before = np.cumsum(spanned) - spanned
        run = np.repeat(np.arange(len(starts)), spanned)
        columns = first[run] + np.arange(len(run)) - before[run]
        above = columns * height
        return cls(columns, np.maximum(starts[run] - above, 0), np.minimum(ends[run] - above, height))

    @cached_property
    def bounds(self) -> np.ndarray:
        corners = [self.columns[0], self.tops.min(), self.columns[-1] + 1, self.bottoms.max()]
        return np.array(corners, float)

    @cached_property
    def area(self) -> float:
        return float((self.bottoms - self.tops).sum())

    def within(self, window: np.ndarray) -> ColumnRuns | None:
        """As ``_Box.within``."""
        left, top, right, bottom = window
        inside = slice(*np.searchsorted(self.columns, (left, right)))
        tops = self.tops[inside].clip(min=top)
        bottoms = self.bottoms[inside].clip(max=bottom)
        kept = tops < bottoms
        if not kept.any():
            return None
        made = ColumnRuns(self.columns[inside][kept], tops[kept], bottoms[kept])
        return self if made.area == self.area else made

    def mask_in(self, window: np.ndarray) -> dict:
        left, top, right, bottom = window
        height, width = bottom - top, right - left
        above = (self.columns - left) * height - top
        starts = self.tops + above
        ends = self.bottoms + above
        is_apart = starts[1:] > ends[:-1]  # parts of neighbouring columns may be one run
        first = np.append(True, is_apart)
        last = np.append(is_apart, True)
        borders = np.stack([starts[first], ends[last]], axis=1)
        counts = np.diff(borders.ravel(), prepend=0, append=height * width)
        runs = {"size": [height, width], "counts": counts.tolist()}
        return {"segmentation": coco_mask.frPyObjects(runs, height, width)}


_Shape = _Box | _Outlines | ColumnRuns
