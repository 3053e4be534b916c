"""All regions of a data set, with the masks that name them."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from revisit.data.catalog import get_records
from revisit.data.images import require_image
from revisit.data.labels import check_size, read_labels
from revisit.modeling.frozen import FrozenBackbone

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

from .regions import Regions, cluster, oracle_features, true_regions


class Described(NamedTuple):
    """A data set in regions."""

    records: list[dict]
    regions: list[Regions]
    owners: np.ndarray  # (R,) int64: which image each region of all images is in
    numbers: np.ndarray  # (R,) int64: its id there
    descriptors: Tensor  # (R, C) unit rows


def describe_set(backbone: FrozenBackbone, cfg: CfgNode, dataset: str) -> Described:
    """The regions of all images of a data set."""
    records = get_records(dataset)
    regions = [find_regions(backbone, cfg, record) for record in tqdm(records, unit="image", desc=dataset)]
    counts = [len(r.descriptors) for r in regions]
    owners = np.repeat(np.arange(len(records)), counts)
    numbers = np.concatenate([np.arange(count) for count in counts])
    return Described(records, regions, owners, numbers, torch.cat([r.descriptors for r in regions]))


def find_regions(backbone: FrozenBackbone, cfg: CfgNode, record: dict) -> Regions:
    """The regions of one image, whose mask has to have its size."""
    options = cfg.SEGMENT_RETRIEVAL
    if options.FEATURES == "oracle":
        truth, num_classes = read_truth(cfg, record)
        return true_regions(oracle_features(truth, num_classes), truth)
    image = require_image(record["file_name"])
    truth, _ = read_truth(cfg, record)
    check_size(record["sem_seg_file_name"], truth, record["file_name"], image.shape[:2])
    square = cv2.resize(image, (options.IMAGE_SIZE, options.IMAGE_SIZE), interpolation=cv2.INTER_LINEAR)
    features = backbone(torch.from_numpy(square).permute(2, 0, 1)[None])[0]
    if options.NORMALIZE:
        features = F.normalize(features, dim=0)
    if options.REGIONS == "truth":
        return true_regions(features, truth)
    return cluster(features, options.NUM_REGIONS, cfg.SEED)


def read_truth(cfg: CfgNode, record: dict) -> tuple[np.ndarray, int]:
    """The (H, W) uint8 mask of a record, and how many classes there are."""
    metadata = MetadataCatalog.get(cfg.DATASETS.TRAIN[0])
    num_classes = len(metadata.stuff_classes)
    return read_labels(record["sem_seg_file_name"], num_classes, metadata.get("label_offset", 0)), num_classes
