"""What a network takes for similar, as a picture: images and their nearest neighbours."""

import logging
from pathlib import Path

import numpy as np

from revisit.data.catalog import get_records
from revisit.evaluation.features import CenterCropDataset, Features
from revisit.viz.tiles import BLACK, Color, SheetRow, evenly_spread, framed, save_sheet

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)

SIZE = 96  # px
GREEN, RED = (40, 160, 60), (210, 60, 50)
LEGEND = {0: ("same label as the query", GREEN), 1: ("another label", RED)}


def neighbor_gallery(
    cfg: CfgNode, bank: Features, test: Features, path: Path, *, num_queries: int = 10, num_neighbors: int = 8
) -> None:
    """Write a picture: images of the first of DATASETS.TEST, each beside its nearest images of KNN_EVAL.BANK.

    A frame is green where the label is the query's, and red where it is not. A picture that cannot be written is
    logged, and ends nothing.

    Args:
        bank: of KNN_EVAL.BANK.
        test: of that test set.
    """
    names = cfg.DATASETS.TEST[0], cfg.KNN_EVAL.BANK
    images, others = (CenterCropDataset(get_records(name), cfg.KNN_EVAL.IMAGE_SIZE) for name in names)
    count = min(num_neighbors, len(others))
    rows = []
    for query in evenly_spread(len(images), num_queries):
        nearest = (bank.rows @ test.rows[query]).topk(count).indices.tolist()
        colors = [GREEN if bank.labels[n] == test.labels[query] else RED for n in nearest]
        neighbors = [_tile(others[n], color) for n, color in zip(nearest, colors, strict=True)]
        rows.append(SheetRow([_tile(images[query], BLACK), *neighbors], legend=LEGEND))
    headers = ["query", *(f"nearest {n}" for n in range(1, count + 1))]
    try:
        save_sheet(path, rows, headers, title=f"{names[0]}: nearest images of {names[1]}")
    except OSError as error:
        logger.error(f"{path} cannot be written ({error.strerror}): this gallery will be missing")


def _tile(record: dict, color: Color) -> np.ndarray:
    return framed(record["image"].permute(1, 2, 0).numpy(), color, SIZE)
