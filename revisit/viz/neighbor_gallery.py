"""What a network takes for similar, as a picture: images and their nearest neighbours."""

from __future__ import annotations

import logging
from pathlib import Path

import cv2
import numpy as np

from revisit.data.catalog import get_records
from revisit.evaluation.features import CenterCropDataset, Features

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)

TILE = 96  # px
GAP = 4  # px
GREEN, RED, BLACK = (40, 160, 60), (210, 60, 50), (0, 0, 0)


def neighbor_gallery(
    cfg: CfgNode, bank: Features, test: Features, path: Path, *, num_queries: int = 10, num_neighbors: int = 8
) -> None:
    """Write a picture: images of the first of DATASETS.TEST, each beside its nearest images of KNN_EVAL.BANK.

    The frame tells whether the label is the query's: green where it is, red where not.

    Args:
        bank: of KNN_EVAL.BANK.
        test: of that test set.
    """
    size = cfg.KNN_EVAL.IMAGE_SIZE
    images, others = (CenterCropDataset(get_records(name), size) for name in (cfg.DATASETS.TEST[0], cfg.KNN_EVAL.BANK))
    rows = []
    for query in np.unique(np.linspace(0, len(images) - 1, num_queries, dtype=int)):
        nearest = (bank.rows @ test.rows[query]).topk(min(num_neighbors, len(others))).indices
        tiles = [_tile(images[int(query)], BLACK), np.full((TILE + GAP, 3 * GAP, 3), 255, np.uint8)]
        same = bank.labels[nearest] == test.labels[query]
        tiles += [_tile(others[int(n)], GREEN if alike else RED) for n, alike in zip(nearest, same, strict=True)]
        rows.append(np.hstack(tiles))
    if not cv2.imwrite(str(path), cv2.cvtColor(np.vstack(rows), cv2.COLOR_RGB2BGR)):
        logger.error(f"{path} cannot be written: this gallery will be missing")


def _tile(record: dict, color: tuple[int, int, int]) -> np.ndarray:
    image = cv2.resize(record["image"].permute(1, 2, 0).numpy(), (TILE, TILE), interpolation=cv2.INTER_LINEAR)
    image = cv2.rectangle(image, (0, 0), (TILE - 1, TILE - 1), color, 3)
    return np.pad(image, ((0, GAP), (0, GAP), (0, 0)), constant_values=255)
