"""A picture of what is retrieved: regions, each beside its nearest labelled ones, in their images."""

import cv2
import numpy as np

from revisit.data.labels import VOID
from revisit.data.reader import require_image
from revisit.viz.tiles import TILE, SheetRow, evenly_spread, fit

from detectron2.config import CfgNode

from .regions import Described, enlarge
from .retrieval import majority_labels, nearest

OUTLINE = (255, 220, 0)
DIMMED = 0.35  # brightness around the region


def gallery_rows(cfg: CfgNode, labelled: Described, queries: Described, names: list[str]) -> list[SheetRow]:
    """The largest region of an object in test images spread over the data set, each with its nearest labelled ones."""
    labels = majority_labels(queries.pixels[:, :-1])
    thing = np.array([label != VOID and names[label] != "background" for label in labels])
    candidates = []
    for image in np.unique(queries.owners[thing]):
        things = np.flatnonzero(thing & (queries.owners == image))
        candidates.append(int(things[queries.pixels[things].sum(axis=1).argmax()]))
    options = cfg.SEGMENT_RETRIEVAL
    chosen = [candidates[n] for n in evenly_spread(len(candidates), options.GALLERY_QUERIES)] or [0]
    k = min(options.GALLERY_NEIGHBORS, len(labelled.descriptors))
    rows = []
    for query, row in zip(chosen, nearest(queries.descriptors[chosen], labelled.descriptors, k).tolist(), strict=True):
        shown = [(queries, query), *((labelled, n) for n in row)]
        rows.append(SheetRow([_tile(*region) for region in shown], [_name(*region, names) for region in shown]))
    return rows


def _name(data: Described, index: int, names: list[str]) -> str:
    (label,) = majority_labels(data.pixels[[index], :-1])
    return "void" if label == VOID else names[label]


def _tile(data: Described, index: int) -> np.ndarray:
    image = require_image(data.records[data.owners[index]]["file_name"])
    ids = enlarge(data.regions[data.owners[index]].ids, image.shape[:2])
    return draw_region(image, ids == data.numbers[index])


def draw_region(image: np.ndarray, region: np.ndarray) -> np.ndarray:
    """The (H, W, 3) uint8 image as a tile: its (H, W) bool region as it is, with an outline, the rest dimmed."""
    tile = fit(image, TILE)
    inside = cv2.resize(region.astype(np.uint8), tile.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    outlines, _ = cv2.findContours(inside, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    picture = np.where(inside[..., None] > 0, tile, (DIMMED * tile).astype(np.uint8))
    return cv2.drawContours(picture, outlines, -1, OUTLINE, 1)
