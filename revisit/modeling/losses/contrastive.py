"""The contrastive losses of MoCo and kNN-MoCo, with one shared log-sum-exp, as the formulas are written."""

import torch
from torch import Tensor

from revisit.modeling.losses.queue_scores import MAX_SCORES, at_least_float32, log_sum_exp, nearest_rows


def info_nce(positive_scores: Tensor, lse: Tensor) -> Tensor:
    """InfoNCE, a scalar: the mean of logaddexp(s, lse) - s, over scores s of positives with the log-sum-exp of their
    negatives' scores, which are of one shape or broadcast."""
    return (torch.logaddexp(positive_scores, lse) - positive_scores).mean()


def contrastive_losses(
    positives: Tensor,
    anchors: Tensor,
    queue: Tensor,
    positives_g: Tensor | None = None,
    queue_g: Tensor | None = None,
    *,
    temperature: float | Tensor,
    num_neighbors: int = 0,
    max_scores: int = MAX_SCORES,
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
        queue: (K, C) unit rows Q_h as they were before this step; of 16 bits too, like ``queue_g``.
        positives_g: (B, L, Cg) unit rows before the head. Without it and ``queue_g`` neighbours are
            mined after the head, by s_ijn itself.
        queue_g: (K, Cg) unit rows Q_g; row n comes from the same anchor as row n of ``queue``.
        temperature: tau > 0, or one for each positive, (L, 1).
        num_neighbors: k, 0 <= k <= K.
        max_scores: scores in memory at once; a longer queue is read in parts. 0: no limit.

    Returns:
        ``loss_inst`` and, if k > 0, ``loss_nn``: scalars, float32 whatever autocast says (float64 in, float64 out).
    """
    with torch.autocast(positives.device.type, enabled=False):
        p = at_least_float32(positives) / temperature
        a = at_least_float32(anchors)
        positive_scores = (p * a[:, None]).sum(dim=2).flatten()  # p_ij . a_i / tau, (B*L,)
        p = p.flatten(0, 1)
        lse = log_sum_exp(p, queue, max_scores)  # (B*L,)
        losses = {"loss_inst": info_nce(positive_scores, lse)}
        if num_neighbors:
            if positives_g is None or queue_g is None:
                positives_g, queue_g = positives, queue
            neighbors = nearest_rows(positives_g.flatten(0, 1), queue_g, num_neighbors, max_scores)
            mean_row = at_least_float32(queue[neighbors]).mean(dim=1)  # (B*L, C); its score is the mean of the scores
            losses["loss_nn"] = (lse - (p * mean_row).sum(dim=1)).mean()
        return losses
