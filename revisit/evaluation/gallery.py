"""What a pretrained network takes for similar, as a picture: images and their nearest neighbours in queue space."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from revisit.data.catalog import get_records
from revisit.evaluation.features import BATCH, CenterCropDataset
from revisit.modeling.moco import MoCo, unit_rows

from detectron2.config import CfgNode

TILE = 96  # px
GAP = 4  # px


@torch.no_grad()
def queue_space_features(model: MoCo, images: DataLoader) -> Tensor:
    """g' of every image, (M, Cg) unit rows: where the rows of Q_g live, of which neighbours are mined."""
    model.eval()
    rows = []
    for batch in images:
        stacked = torch.stack([record["image"] for record in batch])
        rows.append(unit_rows(model.pooled(model.momentum_backbone, model.normalized(stacked))))
    return torch.cat(rows)


def neighbor_gallery(cfg: CfgNode, model: MoCo, path: Path, *, num_queries: int = 10, num_neighbors: int = 8) -> None:
    """Write a picture: images of DATASETS.TEST, each beside its nearest images of KNN_EVAL.BANK.

    The frame tells whether the label is the query's: green where it is, red where not.
    """
    sets = [
        CenterCropDataset(get_records(name), cfg.KNN_EVAL.IMAGE_SIZE)
        for name in (cfg.DATASETS.TEST[0], cfg.KNN_EVAL.BANK)
    ]
    queries = [sets[0][int(i)] for i in np.linspace(0, len(sets[0]) - 1, num_queries)]
    loader = DataLoader(sets[1], batch_size=BATCH, collate_fn=list)
    bank = queue_space_features(model, loader)
    similarity = queue_space_features(model, [queries]) @ bank.T
    rows = []
    for query, scores in zip(queries, similarity, strict=True):
        neighbors = [sets[1][int(i)] for i in scores.topk(num_neighbors).indices]
        tiles = [_tile(query, (0, 0, 0)), np.full((TILE + GAP, 3 * GAP, 3), 255, np.uint8)]
        tiles += [_tile(n, (40, 160, 60) if n["label"] == query["label"] else (210, 60, 50)) for n in neighbors]
        rows.append(np.hstack(tiles))
    cv2.imwrite(str(path), cv2.cvtColor(np.vstack(rows), cv2.COLOR_RGB2BGR))


def _tile(record: dict, color: tuple[int, int, int]) -> np.ndarray:
    image = cv2.resize(record["image"].permute(1, 2, 0).numpy(), (TILE, TILE), interpolation=cv2.INTER_LINEAR)
    image = cv2.rectangle(image, (0, 0), (TILE - 1, TILE - 1), color, 3)
    return np.pad(image, ((0, GAP), (0, GAP), (0, 0)), constant_values=255)
