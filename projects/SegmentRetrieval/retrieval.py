"""Labels for regions, by their nearest labelled region; one confusion matrix over all pixels."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from revisit.data.labels import VOID
from revisit.errors import expect
from revisit.evaluation.sem_seg_evaluation import score

from detectron2.config import CfgNode

from .regions import Described

CHUNK = 1024  # queries whose similarities are held at once


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
