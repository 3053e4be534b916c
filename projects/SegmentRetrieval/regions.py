"""From an image to its regions: clusters of its feature map, and one descriptor for each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn import functional as F

from projects.common.label_maps import shrink_labels
from revisit.data.labels import VOID


class Regions(NamedTuple):
    """The regions of one image."""

    ids: np.ndarray  # (h, w) uint8: which region a cell or, for true regions, a pixel belongs to; VOID is none
    descriptors: Tensor  # (R, C) float32 unit rows, one for each id


def cluster(features: Tensor, num_regions: int, seed: int) -> Regions:
    """K-means over the cells of a (C, h, w) map; descriptors are the clusters' mean features."""
    cells = features.flatten(1).T.cpu().numpy()
    means = KMeans(min(num_regions, len(cells)), n_init=1, random_state=seed).fit(cells)
    _, ids = np.unique(means.labels_, return_inverse=True)  # without a gap, should a cluster have died out
    ids = ids.reshape(features.shape[1:]).astype(np.uint8)
    return Regions(ids, describe(features, torch.from_numpy(ids), int(ids.max()) + 1))


def true_regions(features: Tensor, truth: np.ndarray) -> Regions:
    """A region for each class of an (H, W) mask, described by the cells of the (C, h, w) map, each by its share."""
    classes = np.unique(truth[truth != VOID])
    ids = np.full(truth.shape, VOID, np.uint8)
    for number, label in enumerate(classes):
        ids[truth == label] = number
    return Regions(ids, describe(features, torch.from_numpy(ids), len(classes)))


def oracle_features(truth: np.ndarray, num_classes: int) -> Tensor:
    """(num_classes, H, W) float32: 1 where an (H, W) mask has the class."""
    labels = np.where(truth == VOID, num_classes, truth)
    return F.one_hot(torch.from_numpy(labels).long(), num_classes + 1).permute(2, 0, 1)[:num_classes].float()


def enlarge(ids: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """(h, w) uint8 ids -> (H, W), each pixel that of the cell it lies in."""
    return F.interpolate(torch.from_numpy(ids)[None, None], size=size, mode="nearest-exact")[0, 0].numpy()


def describe(features: Tensor, ids: Tensor, num_regions: int) -> Tensor:
    """(num_regions, C) unit rows: the mean of a (C, h, w) map over each region of (H, W) ids."""
    known = torch.where(ids == VOID, num_regions, ids.long())
    shares = shrink_labels(known, num_regions + 1, tuple(features.shape[1:]))[:num_regions]
    sums = shares.flatten(1).to(features) @ features.flatten(1).T  # a mean but for its length
    return F.normalize(sums, dim=1).cpu()
