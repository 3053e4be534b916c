"""Where the objects of an image lie in its views: boxes that anchor and positive share, or a detector's proposals."""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from revisit.data.augmentation import Look, shown_place
from revisit.data.image_bytes import UnreadableImageError
from revisit.errors import expect, translated
from revisit.keys import is_read

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)

INSIDE = 0.5  # of a proposal's area, at least, that lies where it can be seen


@dataclass(frozen=True)
class ObjectBoxes:
    """``num_boxes`` objects of anchor and large positive, then ``num_small_boxes`` of the anchor and each small one.

    The keys OBJECTS.* say what each option means (docs/method.md: Objects).
    """

    num_boxes: int
    num_small_boxes: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    jitter: float
    min_size: int

    @classmethod
    def from_config(cls, cfg: CfgNode) -> Self | None:
        """None where the method of ``cfg`` does not learn from objects."""
        keys = ("NUM_BOXES", "NUM_SMALL_BOXES", "SCALE", "RATIO", "JITTER", "MIN_SIZE")
        return cls(*(cfg.OBJECTS[key] for key in keys)) if is_read(cfg, "OBJECTS.NUM_BOXES") else None

    def __call__(
        self,
        height: int,
        width: int,
        crops: np.ndarray,
        looks: Sequence[Look],
        sizes: np.ndarray,
        rng: np.random.Generator,
        record: dict,
    ) -> np.ndarray:
        """Boxes of the objects in the views of one image.

        Args:
            height, width: of the image, px.
            crops: (2 + N, 4) px of the image, of the anchor, the positive and the small positives.
            looks, sizes: of these views, px.
            record: of the image. ``proposal_boxes``, (n, 4) px, are chosen from before boxes are drawn.

        Returns:
            (2, O, 4) float32, O = num_boxes + N num_small_boxes: in px of the anchor, and of its positive. An object
            that has no place in its positive, or less than ``min_size`` px on a side there or in the anchor, is NaN
            in the positive; in the anchor every object has a box.

        Raises:
            UnreadableImageError: the image is smaller than ``min_size`` px, or a proposal lies outside of it.
        """
        proposals, name = record.get("proposal_boxes"), f"{record.get('file_name', 'an image')}, {width} x {height} px"
        if min(height, width) < self.min_size:
            raise UnreadableImageError(f"{name}: too small for an object of OBJECTS.MIN_SIZE {self.min_size} px")
        if proposals is not None:
            outside = np.flatnonzero(_area(_clipped(proposals, np.array([0, 0, width, height]))) <= 0)
            if len(outside):
                raise UnreadableImageError(f"{name}: OBJECTS.PROPOSALS has {proposals[outside[0]].tolist()} outside it")
        pairs = []
        for n in range(1, len(crops)):
            count = self.num_boxes if n == 1 else self.num_small_boxes
            shared = np.concatenate([np.maximum(crops[0, :2], crops[n, :2]), np.minimum(crops[0, 2:], crops[n, 2:])])
            boxes = self._choose(shared, count, rng, proposals)
            key, query = (self._seen(boxes, shared, crops[v], looks[v], sizes[v], rng) for v in (0, n))
            lost = np.isnan(key + query).any(axis=1)
            query[lost] = np.nan
            anywhere = self._choose(crops[0], count, rng)
            key[lost] = _placed(anywhere, crops[0], looks[0], sizes[0])[lost]
            pairs.append(np.stack([key, query]))
        return np.concatenate(pairs, axis=1).astype(np.float32)

    def _choose(
        self, region: np.ndarray, count: int, rng: np.random.Generator, proposals: np.ndarray | None = None
    ) -> np.ndarray:
        """(count, 4) boxes inside a region of the image, drawn where no proposals are left; NaN where it is empty."""
        room = region[2:] - region[:2]
        if (room <= 0).any():
            return np.full((count, 4), np.nan)
        ratio = np.exp(rng.uniform(*np.log(self.ratio), size=count))
        side = np.sqrt(room.prod()) * rng.uniform(*self.scale, size=count)
        sides = np.minimum(side[:, None] * np.sqrt(np.stack([ratio, 1 / ratio], axis=1)), room)
        corner = region[:2] + rng.random((count, 2)) * (room - sides)
        boxes = np.concatenate([corner, corner + sides], axis=1)
        if proposals is not None and len(proposals):
            order = rng.permutation(len(proposals))
            clipped = _clipped(proposals[order], region)
            there = (clipped[:, 2:] > clipped[:, :2]).all(axis=1) & (_area(clipped) >= INSIDE * _area(proposals[order]))
            chosen = clipped[there][:count]
            boxes[: len(chosen)] = chosen
        return boxes

    def _seen(
        self,
        boxes: np.ndarray,
        region: np.ndarray,
        crop: np.ndarray,
        look: Look,
        size: int,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """The boxes, jittered inside the region, in px of a view; NaN where they are too small or not whole in it."""
        sides = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
        jittered = _clipped(boxes + sides * rng.uniform(-self.jitter, self.jitter, size=boxes.shape), region)
        placed = _placed(jittered, crop, look, size)
        whole = (placed >= -1e-6).all(axis=1) & (placed <= size + 1e-6).all(axis=1)
        large = (placed[:, 2:] - placed[:, :2] >= self.min_size).all(axis=1)
        return np.where((whole & large)[:, None], placed, np.nan)


def with_proposals(cfg: CfgNode, records: list[dict]) -> list[dict]:
    """The records with the ``proposal_boxes`` that OBJECTS.PROPOSALS, in COCO's result format, has of their images.

    An image goes by its ``image_id``, or by the stem of its file; one without boxes stays as it is.

    Raises:
        UserError: the file cannot be read, has a box that is none, or none of any of the images.
    """
    path = cfg.OBJECTS.PROPOSALS
    if not (path and is_read(cfg, "OBJECTS.PROPOSALS")):
        return records
    with translated(f"OBJECTS.PROPOSALS {path}"):
        content, boxes = json.loads(Path(path).read_text(encoding="utf-8")), {}
        for place, entry in enumerate(content):
            x, y, width, height = map(float, entry["bbox"])
            if not (math.isfinite(x + y + width + height) and width > 0 and height > 0):
                raise ValueError(f"[{place}] has the bbox {entry['bbox']}, expected finite [x, y, width, height] in px")
            boxes.setdefault(_name(entry["image_id"]), []).append([x, y, x + width, y + height])
    found = [boxes.get(_name(record.get("image_id", Path(record.get("file_name", "")).stem))) for record in records]
    count = sum(map(bool, found))
    expect(
        count > 0, f"OBJECTS.PROPOSALS {path} has boxes of none of {len(records)} images: its image_id must be theirs"
    )
    if count < len(records):
        logger.warning(
            f"OBJECTS.PROPOSALS has no boxes of {len(records) - count} of {len(records)} images: drawn there"
        )
    pairs = zip(records, found, strict=True)
    return [{**record, "proposal_boxes": np.array(its)} if its else record for record, its in pairs]


def _name(image_id: int | str) -> str:
    """The same for 42, "42" and "000000000042", as COCO's files are called."""
    return str(image_id).lstrip("0")


def _placed(boxes: np.ndarray, crop: np.ndarray, look: Look, size: int) -> np.ndarray:
    """(n, 4) boxes of the image in px of a view of ``size`` px with its look: around their moved corners, so that the
    centre of one is where the look has moved it."""
    scale = size / (crop[2:] - crop[:2])
    x0, y0, x1, y1 = ((boxes - np.tile(crop[:2], 2)) * np.tile(scale, 2)).T
    corners = np.stack([np.stack([x0, x1, x0, x1]), np.stack([y0, y0, y1, y1]), np.ones((4, len(boxes)))])  # (3, 4, n)
    x, y, _ = np.einsum("ij,jkn->ikn", np.linalg.inv(shown_place(look, size)), corners)
    return np.stack([x.min(0), y.min(0), x.max(0), y.max(0)], axis=1)


def _clipped(boxes: np.ndarray, region: np.ndarray) -> np.ndarray:
    return np.clip(boxes, np.tile(region[:2], 2), np.tile(region[2:], 2))


def _area(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
