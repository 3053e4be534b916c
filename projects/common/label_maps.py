"""Labels between the pixels of an image and the cells of a feature map."""

import torch
from torch import Tensor
from torch.nn import functional as F


def shrink_labels(ids: Tensor, num_labels: int, size: tuple[int, int]) -> Tensor:
    """(H, W) ids below ``num_labels`` -> (L, h, w) float32: the share of each label in a cell's pixels."""
    one_hot = F.one_hot(ids.long(), num_labels).permute(2, 0, 1).float()
    return F.adaptive_avg_pool2d(one_hot, size)


def enlarge_labels(labels: Tensor, size: tuple[int, int]) -> Tensor:
    """(L, h, w) soft labels -> (H, W) uint8: the strongest in each pixel, bilinear between cells."""
    return F.interpolate(labels[None], size=size, mode="bilinear")[0].argmax(dim=0).to(torch.uint8)
