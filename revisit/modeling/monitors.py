"""Numbers that show how a run is doing, as scalar tensors; none of them changes the training."""

import torch
from torch import Tensor

from revisit.modeling.losses.queue_scores import scores_in_parts


@torch.no_grad()
def contrast_accuracy(positives: Tensor, anchors: Tensor, queue: Tensor, max_scores: int = 0) -> tuple[Tensor, Tensor]:
    """Percent of positives (B, C) whose own anchor (B, C) is the closest, and among the five closest, of it and
    all rows of the queue (K, C). Unit rows; at most ``max_scores`` scores in memory at once, 0: all."""
    own = (positives * anchors).sum(dim=1, keepdim=True)
    closer = sum((scores >= own).sum(dim=1) for _, scores in scores_in_parts(positives, queue, max_scores))
    return tuple(100 * (closer < n).float().mean() for n in (1, 5))


@torch.no_grad()
def feature_std(rows: Tensor) -> Tensor:
    """Spread of unit rows (B, C), B > 1: 1 when they fill the sphere evenly, 0 when all are the same (collapse).

    The root mean square over channels of the standard deviation over rows, times sqrt(C), which is
    sqrt(1 - |mean row|^2).
    """
    return (1 - rows.mean(dim=0).square().sum()).clamp(min=0).sqrt()
