"""All regions of a data set, with the masks that name them."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from projects.common.frozen_backbone import FrozenBackbone
from revisit.data.catalog import get_records
from revisit.data.labels import VOID, check_size, read_labels
from revisit.data.reader import require_image
from revisit.evaluation.sem_seg_evaluation import count_pairs

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

from .regions import Regions, cluster, enlarge, oracle_features, true_regions


class Described(NamedTuple):
    """A data set in regions."""

    records: list[dict]
    regions: list[Regions]
    owners: np.ndarray  # (R,) int64: which image each region of all images is in
    numbers: np.ndarray  # (R,) int64: its id there
    descriptors: Tensor  # (R, C) unit rows
    pixels: np.ndarray  # (R, N + 1) int64: those of each class in a region, the void ones last


def describe_set(backbone: FrozenBackbone, cfg: CfgNode, dataset: str) -> Described:
    """The regions of all images of a data set."""
    records = get_records(dataset)
    metadata = MetadataCatalog.get(dataset)
    num_classes, offset = len(metadata.stuff_classes), metadata.get("label_offset", 0)
    regions, pixels = [], []
    for record in tqdm(records, unit="image", desc=dataset):
        truth = read_labels(record["sem_seg_file_name"], num_classes, offset)
        regions.append(find_regions(backbone, cfg, record, truth, num_classes))
        pixels.append(count_pixels(regions[-1], truth, num_classes))
    counts = [len(r.descriptors) for r in regions]
    owners = np.repeat(np.arange(len(records)), counts)
    numbers = np.concatenate([np.arange(count) for count in counts])
    descriptors = torch.cat([r.descriptors for r in regions])
    return Described(records, regions, owners, numbers, descriptors, np.concatenate(pixels))


def find_regions(backbone: FrozenBackbone, cfg: CfgNode, record: dict, truth: np.ndarray, num_classes: int) -> Regions:
    """The regions of one image, whose (H, W) mask has to have its size."""
    options = cfg.SEGMENT_RETRIEVAL
    if options.FEATURES == "oracle":
        return true_regions(oracle_features(truth, num_classes), truth)
    image = require_image(record["file_name"])
    check_size(record["sem_seg_file_name"], truth, record["file_name"], image.shape[:2])
    square = cv2.resize(image, (options.IMAGE_SIZE, options.IMAGE_SIZE), interpolation=cv2.INTER_LINEAR)
    features = backbone(torch.from_numpy(square).permute(2, 0, 1)[None])[0]
    if options.NORMALIZE:
        features = F.normalize(features, dim=0)
    if options.REGIONS == "truth":
        return true_regions(features, truth)
    return cluster(features, options.NUM_REGIONS, cfg.SEED)


def count_pixels(regions: Regions, truth: np.ndarray, num_classes: int) -> np.ndarray:
    """(R, num_classes + 1) int64: the pixels of an (H, W) mask by region and by class, the void ones last."""
    ids = enlarge(regions.ids, truth.shape)
    inside = ids != VOID
    classes = np.minimum(truth[inside], num_classes)
    return count_pairs(ids[inside], classes, (len(regions.descriptors), num_classes + 1))
