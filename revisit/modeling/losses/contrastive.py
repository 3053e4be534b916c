"""The contrastive losses of MoCo and kNN-MoCo, with one shared log-sum-exp, as the formulas are written."""

import torch
from torch import Tensor


def contrastive_losses(
    positives: Tensor,
    anchors: Tensor,
    queue: Tensor,
    positives_g: Tensor | None = None,
    queue_g: Tensor | None = None,
    *,
    temperature: float,
    num_neighbors: int = 0,
) -> dict[str, Tensor]:
    """L_inst and, with ``num_neighbors`` > 0, L_nn, not weighted by lambda (docs/method.md: Losses).

        s_ijn  = p_ij . Q_h[n] / tau            lse_ij = logsumexp_n s_ijn
        L_inst = mean_ij [ logaddexp(p_ij . a_i / tau, lse_ij) - p_ij . a_i / tau ]
        N_ij   = top-k over n of cos(g(x+_ij), Q_g[n])
        L_nn   = mean_ij [ lse_ij - mean_{n in N_ij} s_ijn ]

    This is the paper's Algorithm 1. Its displayed equations 1 and 3 pair the *anchor* with the negatives
    and the neighbours and sum where this averages; keys carry no gradient, so those terms would be
    constants. The denominator of L_nn runs over all K rows, the other neighbours included.

    Args:
        positives: (B, L, C) unit rows p_ij after the head, with gradient.
        anchors: (B, C) unit rows a_i of the momentum encoder, without gradient.
        queue: (K, C) unit rows Q_h as they were before this step.
        positives_g: (B, L, Cg) unit rows before the head. Without it and ``queue_g`` neighbours are
            mined after the head, by s_ijn itself.
        queue_g: (K, Cg) unit rows Q_g; row n comes from the same anchor as row n of ``queue``.
        temperature: tau > 0.
        num_neighbors: k, 0 <= k <= K.

    Returns:
        ``loss_inst`` and, if k > 0, ``loss_nn``: scalars, float32 whatever autocast says (float64 in, float64 out).
    """
    with torch.autocast(positives.device.type, enabled=False):
        p, a, q = (at_least_float32(x) for x in (positives, anchors, queue))
        scores = p.flatten(0, 1) @ q.T / temperature  # (B*L, K)
        lse = scores.logsumexp(dim=1)  # (B*L,)
        positive_score = (p * a[:, None]).sum(dim=2).flatten() / temperature  # (B*L,)
        losses = {"loss_inst": (torch.logaddexp(positive_score, lse) - positive_score).mean()}
        if num_neighbors:
            cosines = scores.detach()  # but for tau, which changes no order
            if positives_g is not None and queue_g is not None:
                cosines = at_least_float32(positives_g.detach()).flatten(0, 1) @ at_least_float32(queue_g).T
            neighbors = cosines.topk(num_neighbors, dim=1, sorted=False).indices
            losses["loss_nn"] = (lse - scores.gather(1, neighbors).mean(dim=1)).mean()
        return losses


def at_least_float32(x: Tensor) -> Tensor:
    """float64 as it is, anything else as float32."""
    return x if x.dtype == torch.float64 else x.float()
