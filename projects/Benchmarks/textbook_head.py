"""The losses as a user of torch writes them after the paper's Algorithm 1: every logit matrix in memory.

What ``chunked_losses`` is measured against: written to be right, not to be slow.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def textbook_losses(
    positives: Tensor,
    anchors: Tensor,
    queue: Tensor,
    positives_g: Tensor,
    queue_g: Tensor,
    *,
    temperature: float,
    num_neighbors: int,
) -> dict[str, Tensor]:
    """L_inst and L_nn as ``contrastive_losses`` has them, by cross-entropy over logits (B*L, 1 + K)."""
    queue = queue.clone()  # as MoCo's: new keys go into the queue before backward needs the old ones
    p = positives.flatten(0, 1)
    a = anchors.repeat_interleave(positives.shape[1], dim=0)
    own = (p * a).sum(dim=1, keepdim=True)
    negatives = p @ queue.T
    logits = torch.cat([own, negatives], dim=1) / temperature
    loss_inst = F.cross_entropy(logits, torch.zeros(len(p), dtype=torch.int64, device=p.device))
    with torch.no_grad():
        neighbors = (positives_g.flatten(0, 1) @ queue_g.T).topk(num_neighbors, dim=1).indices
    log_shares = F.log_softmax(negatives / temperature, dim=1)
    loss_nn = -log_shares.gather(1, neighbors).mean()
    return {"loss_inst": loss_inst, "loss_nn": loss_nn}
