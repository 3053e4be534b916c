"""Labels for regions, by their nearest labelled region; one confusion matrix over all pixels; a picture of both."""

from collections.abc import Sequence

import cv2
import numpy as np
import torch
from torch import Tensor

from revisit.data.labels import VOID
from revisit.data.reader import require_image
from revisit.errors import expect
from revisit.evaluation.sem_seg_evaluation import score
from revisit.viz.tiles import TILE, SheetRow, evenly_spread, fit

from detectron2.config import CfgNode

from .regions import Described, enlarge

CHUNK = 1024  # queries whose similarities are held at once
OUTLINE = (255, 220, 0)
DIMMED = 0.35  # brightness around the region


def keep_classes(pixels: np.ndarray, kept: Sequence[int]) -> np.ndarray:
    """(R, N) int64: the counts of (R, N + 1) pixels by class as if every class but ``kept`` were void."""
    counts = np.zeros_like(pixels[:, :-1])
    counts[:, kept] = pixels[:, kept]
    return counts


def majority_labels(counts: np.ndarray) -> np.ndarray:
    """(R,) int64: the class of the most pixels, by (R, N) counts, the first of equals; VOID where there is none."""
    return np.where(counts.any(axis=1), counts.argmax(axis=1), VOID)


def nearest(queries: Tensor, keys: Tensor, k: int) -> Tensor:
    """(Q, k) int64: the keys of the largest cosine for each query, nearest first; both are unit rows."""
    return torch.cat([(chunk @ keys.T).topk(k, dim=1).indices for chunk in queries.split(CHUNK)])


def mean_iou(confusion: np.ndarray, names: list[str], counted: Sequence[int]) -> tuple[float, dict[str, float]]:
    """Percent: the mean over the classes ``counted`` that occur, and the IoU of each by name."""
    values = score(confusion, names)
    per_class = {names[c]: values[f"IoU-{names[c]}"] for c in counted if f"IoU-{names[c]}" in values}
    classes = ", ".join(names[c] for c in counted)
    expect(bool(per_class), f"none of {classes} is in the truth or was predicted: nothing to average")
    return float(np.mean(list(per_class.values()))), per_class


def evaluate(
    cfg: CfgNode, labelled: Described, queries: Described, names: list[str], kept: Sequence[int], counted: Sequence[int]
) -> tuple[float, dict[str, float]]:
    """mIoU over the classes ``counted`` where all but ``kept`` are void, and each class's IoU."""
    labels = majority_labels(keep_classes(labelled.pixels, kept))
    known = np.flatnonzero(labels != VOID)
    classes = ", ".join(names[c] for c in kept)
    expect(len(known) > 0, f"no region of {cfg.DATASETS.TRAIN[0]} shows one of {classes}")
    if cfg.SEGMENT_RETRIEVAL.SHUFFLE_LABELS:
        labels[known] = np.random.default_rng(cfg.SEED).permutation(labels[known])
    found = nearest(queries.descriptors, labelled.descriptors[known], 1)[:, 0].numpy()
    confusion = np.zeros((len(names), len(names)), np.int64)
    np.add.at(confusion.T, labels[known][found], keep_classes(queries.pixels, kept))
    expect(bool(confusion.any()), f"every pixel of {cfg.DATASETS.TEST[0]} is void: expected masks of classes")
    return mean_iou(confusion, names, counted)


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
