"""Monitors of a run, as scalar tensors. None of them changes the training."""

import torch
from torch import Tensor

from revisit.modeling.losses.queue_scores import scores_in_parts


@torch.no_grad()
def contrast_accuracy(positives: Tensor, anchors: Tensor, queue: Tensor, max_scores: int = 0) -> tuple[Tensor, Tensor]:
    """Percent of positives whose own anchor is closer than all rows of the queue, and percent of positives whose anchor
    is among the five closest.

    Args:
        positives: (B, C) unit rows, like ``anchors`` (B, C) and ``queue`` (K, C).
        max_scores: scores in memory at once; 0: all.
    """
    own = (positives * anchors).sum(dim=1, keepdim=True)
    parts = scores_in_parts(positives, queue, max_scores)
    closer = sum((scores >= own).sum(dim=1) for _, scores in parts)
    top1 = (closer < 1).float().mean()
    top5 = (closer < 5).float().mean()
    return 100 * top1, 100 * top5


@torch.no_grad()
def feature_std(rows: Tensor) -> Tensor:
    """Spread of unit rows (B, C), B > 1: 1 if they fill the sphere evenly, 0 if all are the same (collapse).

    The root mean square over channels of the standard deviation over rows, times sqrt(C), which is
    sqrt(1 - |mean row|^2).
    """
    return (1 - rows.mean(dim=0).square().sum()).clamp(min=0).sqrt()
