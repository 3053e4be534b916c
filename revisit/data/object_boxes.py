"""Where the objects of an image lie in its views: boxes that anchor and positive share, or a detector's proposals."""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from revisit.data.images.image_bytes import UnreadableImageError
from revisit.data.images.reader import Picture
from revisit.data.views.augmentation import Look, shown_place
from revisit.errors import expect, translated
from revisit.keys import is_read

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)

LOG_RATIO = (math.log(1 / 3), math.log(3))  # width / height
MIN_SIZE = 8  # px, of a box's side in either view
INSIDE = 0.5  # of a proposal's area, at least, that lies where both views show it


@dataclass(frozen=True)
class ObjectBoxes:
    """``num_boxes`` objects of anchor and large positive, then a quarter as many of the anchor and each small one
    (docs/method.md: Objects); the keys OBJECTS.* say what each option means."""

    num_boxes: int
    scale: tuple[float, float]
    jitter: float

    def __call__(
        self, crops: np.ndarray, looks: Sequence[Look], sizes: np.ndarray, rng: np.random.Generator, known: np.ndarray
    ) -> np.ndarray:
        """Boxes of the O objects of an image, (2, O, 4) float32: in px of the anchor, and of its positive.

        NaN in the positive where that does not show the object whole, or one of both shows less than MIN_SIZE px of a
        side; then the anchor's is the whole view, if its own is too small.

        Args:
            crops: (2 + N, 4) px of the image, of the anchor, the positive and the small positives; ``looks`` and
                ``sizes``, px, of these views.
            known: (n, 4) px of the image, proposals to choose from before boxes are drawn.
        """
        pairs = []
        for n in range(1, len(crops)):
            count = self.num_boxes if n == 1 else max(1, self.num_boxes // 4)
            shared = np.concatenate([np.maximum(crops[0, :2], crops[n, :2]), np.minimum(crops[0, 2:], crops[n, 2:])])
            boxes, views = self._choose(shared, count, rng, known), []
            for view in (0, n):
                sides = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
                moved = _clipped(boxes + sides * rng.uniform(-self.jitter, self.jitter, boxes.shape), shared)
                views.append(_placed(moved, crops[view], looks[view], sizes[view]))
            key, query = views
            query[np.isnan(key + query).any(axis=1)] = np.nan
            pairs.append(np.stack([np.where(np.isnan(key), [0, 0, sizes[0], sizes[0]], key), query]))
        return np.concatenate(pairs, axis=1).astype(np.float32)

    def _choose(self, region: np.ndarray, count: int, rng: np.random.Generator, known: np.ndarray) -> np.ndarray:
        """(count, 4) boxes in a region of the image: known ones, then drawn ones; without an area where it is empty."""
        room = np.maximum(region[2:] - region[:2], 0)
        ratio = np.exp(rng.uniform(*LOG_RATIO, size=count))
        side = np.sqrt(room.prod()) * rng.uniform(*self.scale, size=count)
        sides = np.minimum(side[:, None] * np.sqrt(np.stack([ratio, 1 / ratio], axis=1)), room)
        corner = region[:2] + rng.random((count, 2)) * (room - sides)
        cut = _clipped(known, region)
        cut = rng.permutation(cut[_area(cut) >= INSIDE * _area(known)])
        return np.concatenate([cut, np.concatenate([corner, corner + sides], axis=1)])[:count]


def known_boxes(picture: Picture | None, height: int, width: int) -> np.ndarray:
    """A picture's proposals, (n, 4). Raises UnreadableImageError where one lies outside, or it is below MIN_SIZE px."""
    boxes = np.empty((0, 4)) if picture is None or picture.proposals is None else picture.proposals
    outside = boxes[_area(_clipped(boxes, np.array([0, 0, width, height]))) <= 0].tolist()
    if min(height, width) < MIN_SIZE or outside:
        wrong = f"OBJECTS.PROPOSALS has {outside[0]} outside it" if outside else f"objects need {MIN_SIZE} px"
        raise UnreadableImageError(f"{picture.name if picture else 'an image'}: {width} x {height} px, and {wrong}")
    return boxes


def with_proposals(cfg: CfgNode, records: list[dict]) -> list[dict]:
    """The records with the ``proposal_boxes`` of OBJECTS.PROPOSALS, by ``image_id`` or the stem of the image's file.

    Raises:
        UserError: the file cannot be read, has a box that is none, or none of any of the images.
    """
    path, boxes = cfg.OBJECTS.PROPOSALS, {}
    if not (path and is_read(cfg, "OBJECTS.PROPOSALS")):
        return records
    with translated(f"OBJECTS.PROPOSALS {path}", content=True):
        for place, entry in enumerate(json.loads(Path(path).read_text(encoding="utf-8"))):
            x, y, width, height = map(float, entry["bbox"])
            if not (math.isfinite(x + y + width + height) and min(width, height, x + width, y + height) > 0):
                raise ValueError(f"[{place}] has the bbox {entry['bbox']}, expected [x, y, width, height] in px")
            boxes.setdefault(str(entry["image_id"]).lstrip("0"), []).append([x, y, x + width, y + height])
    # 42, "42" and "000000000042", as COCO's files are called, are the same.
    names = (record.get("image_id", Path(record.get("file_name", "")).stem) for record in records)
    names = [str(name).lstrip("0") for name in names]
    count = sum(name in boxes for name in names)
    coverage = f"OBJECTS.PROPOSALS {path} has boxes of {count} of {len(records)} images, by their image_id"
    expect(count > 0, f"{coverage}: expected some")
    if count < len(records):
        logger.warning(f"{coverage}: those of the others are drawn")
    own = {name: {"proposal_boxes": np.array(its)} for name, its in boxes.items()}
    return [record | own.get(name, {}) for record, name in zip(records, names, strict=True)]


def _placed(boxes: np.ndarray, crop: np.ndarray, look: Look, size: int) -> np.ndarray:
    """(n, 4) boxes of the image in px of a view with its look: around their moved corners, so that the centre is where
    the look has moved it. NaN where one is too small or does not lie whole in the view."""
    x0, y0, x1, y1 = ((boxes - np.tile(crop[:2], 2)) * np.tile(size / (crop[2:] - crop[:2]), 2)).T
    corners = np.array([[x0, x1, x0, x1], [y0, y0, y1, y1], np.ones((4, len(boxes)))])  # (3, 4, n)
    x, y, _ = np.einsum("ij,jkn->ikn", np.linalg.inv(shown_place(look, size)), corners)
    placed = np.array([x.min(0), y.min(0), x.max(0), y.max(0)]).T
    whole = (np.abs(placed - size / 2) <= size / 2 + 1e-6) & (np.tile(placed[:, 2:] - placed[:, :2], 2) >= MIN_SIZE)
    return np.where(whole.all(axis=1, keepdims=True), placed, np.nan)


def _clipped(boxes: np.ndarray, region: np.ndarray) -> np.ndarray:
    return np.clip(boxes, np.tile(region[:2], 2), np.tile(region[2:], 2))


def _area(boxes: np.ndarray) -> np.ndarray:
    return np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1)
