"""Labels for regions, by their nearest labelled region; one confusion matrix over all pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from revisit.data.labels import VOID
from revisit.errors import UserError
from revisit.evaluation.sem_seg import confusion_matrix, score

from detectron2.config import CfgNode

from .described import Described, read_truth

CHUNK = 1024  # queries whose similarities are held at once


def enlarge(ids: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """(h, w) uint8 ids -> (H, W), each pixel that of the cell it lies in."""
    return F.interpolate(torch.from_numpy(ids)[None, None], size=size, mode="nearest-exact")[0, 0].numpy()


def keep_classes(truth: np.ndarray, kept: Sequence[int]) -> np.ndarray:
    """The (H, W) uint8 mask with every class but ``kept`` turned into VOID."""
    return np.where(np.isin(truth, kept), truth, np.uint8(VOID))


def majority_labels(ids: np.ndarray, truth: np.ndarray, num_regions: int, num_classes: int) -> np.ndarray:
    """(R,) int64: the class that most valid pixels of each region have, VOID where it has none.

    Args:
        ids: (H, W) regions, VOID where there is none.
        truth: (H, W) classes, VOID where there is none.
    """
    valid = (truth != VOID) & (ids != VOID)
    pairs = ids[valid].astype(np.int64) * num_classes + truth[valid]
    counts = np.bincount(pairs, minlength=num_regions * num_classes).reshape(num_regions, num_classes)
    return np.where(counts.any(axis=1), counts.argmax(axis=1), VOID)


def nearest(queries: Tensor, keys: Tensor, k: int) -> Tensor:
    """(Q, k) int64: the keys of the largest cosine for each query, nearest first; both are unit rows."""
    return torch.cat([(chunk @ keys.T).topk(k, dim=1).indices for chunk in queries.split(CHUNK)])


def mean_iou(confusion: np.ndarray, names: list[str], counted: Sequence[int]) -> tuple[float, dict[str, float]]:
    """Percent: the mean over the classes ``counted`` that occur, and the IoU of each by name."""
    values = score(confusion, names)
    per_class = {names[c]: values[f"IoU-{names[c]}"] for c in counted if f"IoU-{names[c]}" in values}
    if not per_class:
        raise UserError(
            f"none of {', '.join(names[c] for c in counted)} is in the truth or was found: nothing to average"
        )
    return float(np.mean(list(per_class.values()))), per_class


def evaluate(
    cfg: CfgNode, labelled: Described, queries: Described, names: list[str], kept: Sequence[int], counted: Sequence[int]
) -> tuple[float, dict[str, float]]:
    """mIoU over the classes ``counted`` where all but ``kept`` are void, and each class's IoU."""
    labels = []
    for record, regions in zip(labelled.records, labelled.regions, strict=True):
        truth = keep_classes(read_truth(cfg, record)[0], kept)
        ids = enlarge(regions.ids, truth.shape)
        labels.append(majority_labels(ids, truth, len(regions.descriptors), len(names)))
    labels = np.concatenate(labels)
    known = np.flatnonzero(labels != VOID)
    if not len(known):
        raise UserError(f"no region of {cfg.DATASETS.TRAIN[0]} shows one of {', '.join(names[c] for c in kept)}")
    if cfg.SEGMENT_RETRIEVAL.SHUFFLE_LABELS:
        labels[known] = np.random.default_rng(cfg.SEED).permutation(labels[known])
    found = nearest(queries.descriptors, labelled.descriptors[known], 1)[:, 0].numpy()
    predicted = labels[known][found].astype(np.uint8)
    confusion = np.zeros((len(names), len(names)), np.int64)
    for image, (record, regions) in enumerate(zip(queries.records, queries.regions, strict=True)):
        truth = keep_classes(read_truth(cfg, record)[0], kept)
        by_region = np.append(predicted[queries.owners == image], np.uint8(VOID))
        ids = enlarge(regions.ids, truth.shape)
        confusion += confusion_matrix(by_region[np.minimum(ids, len(by_region) - 1)], truth, len(names))
    if not confusion.any():
        raise UserError(f"every pixel of {cfg.DATASETS.TEST[0]} is void: expected masks of classes")
    return mean_iou(confusion, names, counted)
