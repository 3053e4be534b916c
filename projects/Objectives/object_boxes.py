"""Where the objects of an image lie in its views: boxes that anchor and positive share, or a detector's proposals."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from projects.Objectives.object_pictures import draw_objects
from projects.Objectives.proposals import with_proposals
from revisit.boxes.boxes import sides_of
from revisit.data.images.image_bytes import UnreadableImageError
from revisit.data.views.annotation import DrawnImage, ViewAnnotator
from revisit.data.views.looks import Look

LOG_RATIO = (math.log(1 / 3), math.log(3))  # width / height
MIN_SIZE = 8  # px, of a box's side in either view
INSIDE = 0.5  # of a proposal's area, at least, that lies where both views show it


@dataclass(frozen=True)
class ObjectBoxes(ViewAnnotator):
    """``num_boxes`` objects of anchor and large positive, then a quarter as many of the anchor and each small one
    (docs/method.md: Objects); the keys OBJECTS.* say what each option means."""

    num_boxes: int
    scale: tuple[float, float]
    jitter: float
    proposals: str = ""
    drawn_share: float = 0.0

    def prepare(self, records: list[dict]) -> list[dict]:
        """The records, with the boxes of OBJECTS.PROPOSALS."""
        return with_proposals(self.proposals, records) if self.proposals else records

    def __call__(self, image: DrawnImage) -> dict[str, np.ndarray]:
        """Boxes of the O objects of an image, (O, 4) float32: ``anchor_objects`` in px of the anchor, and
        ``positive_objects`` in px of the positive that each is in.

        NaN in the positive where that does not show the object whole, or where one of both views shows less than
        MIN_SIZE px of a side. The anchor's box is the whole view where it is too small itself.
        """
        proposals = proposed_boxes(image)
        rng = image.generator()
        pairs = [self._pair(image, n, proposals, rng) for n in range(1, len(image.crops))]
        keys, queries = np.concatenate(pairs, axis=1).astype(np.float32)
        return {"anchor_objects": keys, "positive_objects": queries}

    def draw(self, tiles: list[np.ndarray], views: Mapping) -> None:
        draw_objects(tiles, views, self.num_boxes)

    def _pair(self, image: DrawnImage, n: int, known: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(2, count, 4) boxes of the objects of the anchor and view ``n``."""
        anchor, positive = image.crops[[0, n]]
        shared = _intersection(anchor, positive)
        count = self.num_boxes if n == 1 else max(1, self.num_boxes // 4)
        boxes = self._choose(shared, count, rng, known)
        key = self._seen_in(image, 0, boxes, shared, rng)
        query = self._seen_in(image, n, boxes, shared, rng)
        is_lost = np.isnan(key + query).any(axis=1)
        query[is_lost] = np.nan
        anchor_size = image.sizes[0]
        key = np.where(np.isnan(key), [0, 0, anchor_size, anchor_size], key)
        return np.stack([key, query])

    def _choose(self, region: np.ndarray, count: int, rng: np.random.Generator, known: np.ndarray) -> np.ndarray:
        """(count, 4) boxes in a region of the image: known ones up to their share, then drawn ones; without an area
        where it is empty."""
        drawn = self._drawn(region, count, rng)
        cut = _clipped(known, region)
        is_inside = _area(cut) >= INSIDE * _area(known)
        most = round((1 - self.drawn_share) * count)
        chosen = rng.permutation(cut[is_inside])[:most]
        return np.concatenate([chosen, drawn])[:count]

    def _drawn(self, region: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """(count, 4) boxes in a region of the image: of random scale, ratio and place, in this order."""
        room = np.maximum(sides_of(region), 0)
        ratio = np.exp(rng.uniform(*LOG_RATIO, size=count))
        scale = rng.uniform(*self.scale, size=count)
        side = np.sqrt(room.prod()) * scale  # of a square of the same area
        stretch = np.sqrt(np.stack([ratio, 1 / ratio], axis=1))
        sides = np.minimum(side[:, None] * stretch, room)
        place = rng.random((count, 2))
        corner = region[:2] + place * (room - sides)
        return np.concatenate([corner, corner + sides], axis=1)

    def _seen_in(
        self, image: DrawnImage, view: int, boxes: np.ndarray, shared: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Boxes of the image whose edges have moved, (n, 4) px of a view; see ``_placed``."""
        shares = rng.uniform(-self.jitter, self.jitter, boxes.shape)
        moved = boxes + np.tile(sides_of(boxes), 2) * shares
        visible = _clipped(moved, shared)
        return _placed(visible, image.crops[view], image.looks[view], image.sizes[view])


def proposed_boxes(image: DrawnImage) -> np.ndarray:
    """The proposals of an image's record, (n, 4) px.

    Raises:
        UnreadableImageError: a proposal lies outside of the image, or the image has fewer than MIN_SIZE px.
    """
    boxes = image.record.get("proposal_boxes", np.empty((0, 4)))
    name = f"{image.record.get('file_name', 'an image')}: {image.width} x {image.height} px"
    if min(image.height, image.width) < MIN_SIZE:
        raise UnreadableImageError(f"{name}, and objects need {MIN_SIZE} px")
    whole_image = np.array([0, 0, image.width, image.height])
    area_inside = _area(_clipped(boxes, whole_image))
    outside = boxes[area_inside <= 0]
    if len(outside):
        raise UnreadableImageError(f"{name}, and OBJECTS.PROPOSALS has {outside[0].tolist()} outside it")
    return boxes


def _placed(boxes: np.ndarray, crop: np.ndarray, look: Look, size: int) -> np.ndarray:
    """(n, 4) boxes of the image in px of a view with its look: around their moved corners, so that the centre is where
    the look has moved it. NaN where one is too small or does not lie whole in the view."""
    scale = size / sides_of(crop)
    in_crop = boxes - np.tile(crop[:2], 2)
    x0, y0, x1, y1 = (in_crop * np.tile(scale, 2)).T
    corners_x = [x0, x1, x0, x1]
    corners_y = [y0, y0, y1, y1]
    ones = np.ones((4, len(boxes)))
    corners = np.array([corners_x, corners_y, ones])  # (3, 4, n), homogeneous
    to_view = np.linalg.inv(look.source_points(size))
    x, y, _ = np.einsum("ij,jkn->ikn", to_view, corners)
    lowest = (x.min(0), y.min(0))
    highest = (x.max(0), y.max(0))
    placed = np.array([*lowest, *highest]).T
    from_centre = np.abs(placed - size / 2)
    is_inside = from_centre <= size / 2 + 1e-6
    is_large = np.tile(sides_of(placed), 2) >= MIN_SIZE
    is_shown = (is_inside & is_large).all(axis=1, keepdims=True)
    return np.where(is_shown, placed, np.nan)


def _intersection(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(4,) what two boxes share; where they share nothing, its sides are negative."""
    corner = np.maximum(one[:2], other[:2])
    opposite = np.minimum(one[2:], other[2:])
    return np.concatenate([corner, opposite])


def _clipped(boxes: np.ndarray, region: np.ndarray) -> np.ndarray:
    lowest = np.tile(region[:2], 2)
    highest = np.tile(region[2:], 2)
    return np.clip(boxes, lowest, highest)


def _area(boxes: np.ndarray) -> np.ndarray:
    return np.prod(np.maximum(sides_of(boxes), 0), axis=1)
