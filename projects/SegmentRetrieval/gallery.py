"""A picture of what is retrieved: regions, each beside its nearest labelled ones, in their images."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from revisit.data.labels import VOID
from revisit.data.reader import require_image

from detectron2.config import CfgNode

from .described import Described
from .regions import enlarge
from .retrieval import majority_labels, nearest

TILE, GAP, LINE = 150, 6, 18  # px
OUTLINE = (255, 220, 0)
DIMMED = 0.35  # brightness around the region


class Tile(NamedTuple):
    """A region in its image."""

    image: np.ndarray  # (H, W, 3) uint8 RGB
    region: np.ndarray  # (H, W) bool
    caption: str


def draw_tile(tile: Tile) -> np.ndarray:
    """(TILE + LINE, TILE, 3) uint8 RGB: the region as it is, the rest dimmed, the caption below."""
    scale = TILE / max(tile.image.shape[:2])
    size = tuple(max(1, round(side * scale)) for side in tile.image.shape[1::-1])
    image = cv2.resize(tile.image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    region = cv2.resize(tile.region.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST)
    picture = np.where(region[..., None] > 0, image, (DIMMED * image).astype(np.uint8))
    outlines, _ = cv2.findContours(region, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    picture = cv2.drawContours(np.ascontiguousarray(picture), outlines, -1, OUTLINE, 1)
    canvas = np.full((TILE + LINE, TILE, 3), 255, np.uint8)
    canvas[: size[1], : size[0]] = picture
    return cv2.putText(
        canvas, tile.caption, (2, TILE + LINE - 5), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (0, 0, 0), 1, cv2.LINE_AA
    )


def save_gallery(path: Path, rows: list[list[Tile]]) -> None:
    """Write a PNG: each row is a query, then its neighbours, nearest first."""
    lines = []
    for query, *neighbors in rows:
        tiles = [np.pad(draw_tile(tile), ((0, GAP), (0, GAP), (0, 0)), constant_values=255) for tile in neighbors]
        apart = np.pad(draw_tile(query), ((0, GAP), (0, 4 * GAP), (0, 0)), constant_values=255)
        lines.append(np.hstack([apart, *tiles]))
    cv2.imwrite(str(path), cv2.cvtColor(np.vstack(lines), cv2.COLOR_RGB2BGR))


def gallery_rows(cfg: CfgNode, labelled: Described, queries: Described, names: list[str]) -> list[list[Tile]]:
    """Regions of test images that are no background, spread over the data set, each with its nearest ones."""
    labels = majority_labels(queries.pixels[:, :-1])
    thing = np.array([label != VOID and names[label] != "background" for label in labels])
    candidates = []
    for image in np.unique(queries.owners[thing]):
        things = np.flatnonzero(thing & (queries.owners == image))
        candidates.append(int(things[queries.pixels[things].sum(axis=1).argmax()]))
    options = cfg.SEGMENT_RETRIEVAL
    count = min(options.GALLERY_QUERIES, len(candidates))
    chosen = [candidates[int(n)] for n in np.linspace(0, len(candidates) - 1, count)] if count else [0]
    k = min(options.GALLERY_NEIGHBORS, len(labelled.descriptors))
    neighbors = nearest(queries.descriptors[chosen], labelled.descriptors, k)
    return [
        [make_tile(queries, query, names), *(make_tile(labelled, int(n), names) for n in row)]
        for query, row in zip(chosen, neighbors, strict=True)
    ]


def make_tile(data: Described, index: int, names: list[str]) -> Tile:
    image = require_image(data.records[data.owners[index]]["file_name"])
    ids = enlarge(data.regions[data.owners[index]].ids, image.shape[:2])
    (label,) = majority_labels(data.pixels[[index], :-1])
    return Tile(image, ids == data.numbers[index], "void" if label == VOID else names[label])
