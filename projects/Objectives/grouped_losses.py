"""kNN-MoCo's losses over rows with groups, and neighbours that have to find back (docs/method.md: Groups).

Formulas are those of ``revisit/modeling/losses/contrastive.py``; what differs is over which rows they run.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from revisit.modeling.distributed import gather_rows
from revisit.modeling.losses.contrastive import info_nce
from revisit.modeling.losses.queue_scores import (
    MAX_SCORES,
    at_least_float32,
    log_sum_exp,
    nearest_rows,
    scores_in_parts,
)

from detectron2.utils import comm


class Rule(NamedTuple):
    """What becomes of rows of an image's own group."""

    in_inst: bool  # whether they are in the denominator of L_inst
    in_nn: bool  # and of L_nn
    come_first: bool  # as neighbours; else they are none


RULES = {
    "exclude": Rule(in_inst=False, in_nn=False, come_first=False),
    "attract": Rule(in_inst=False, in_nn=True, come_first=True),
    "across": Rule(in_inst=True, in_nn=True, come_first=False),
}
BEYOND = 4.0  # more than two cosines differ by


@dataclass(frozen=True)
class Groups:
    """Groups of M positives and of K rows, and the rule for those of the same group."""

    of_positives: Tensor  # (M,) int64 of at least 0
    of_rows: Tensor  # (K,) int64; -1: of no group
    rule: Rule

    def leave_out(self, scores: Tensor, places: slice) -> Tensor:
        """Scores (M, n) of the rows at ``places``, -inf for those of the same group."""
        return scores.masked_fill_(self._are_same(places), -torch.inf)

    def put_in_order(self, cosines: Tensor, places: slice) -> Tensor:
        """Cosines (M, n) by which rows of the same group come first, or last."""
        return cosines.add_(self._are_same(places), alpha=BEYOND if self.rule.come_first else -BEYOND)

    def allow(self, neighbors: Tensor) -> Tensor:
        """Whether rows (M, k) may be neighbours, bool: fewer than k may where the queue has one group for the most."""
        if self.rule.come_first:
            return torch.ones_like(neighbors, dtype=torch.bool)
        return self.of_rows[neighbors] != self.of_positives[:, None]

    def _are_same(self, places: slice) -> Tensor:
        return self.of_positives[:, None] == self.of_rows[places]


@dataclass(frozen=True)
class Cycle:
    """The way back from a neighbour: its nearest anchor has to be that of its positive."""

    anchors: Tensor  # (N, W) unit rows of the batch of all processes, in the space of the neighbours
    own: Tensor  # (M,) int64, the place of each positive's anchor among them

    def allow(self, neighbors: Tensor, queue: Tensor, max_scores: int) -> Tensor:
        """Whether rows (M, k) of a queue (K, W) find back, bool."""
        parts = scores_in_parts(self.anchors, queue, max_scores, may_round=True)
        nearest = torch.cat([scores.argmax(dim=0) for _, scores in parts])  # (K,)
        return nearest[neighbors] == self.own[:, None]


class Mined(NamedTuple):
    """Neighbours of M positives."""

    rows: Tensor  # (M, k) int64, places in the queue
    counts: Tensor  # (M, k) bool, whether each is one


@torch.no_grad()
def mine(
    rows: Tensor,
    queue: Tensor,
    num_neighbors: int,
    groups: Groups | None = None,
    cycle: Cycle | None = None,
    max_scores: int = MAX_SCORES,
) -> Mined:
    """The nearest k of a queue (K, W) to unit rows (M, W), as the groups' rule has them, and which of them count."""
    change = groups.put_in_order if groups else None
    neighbors = nearest_rows(rows, queue, num_neighbors, max_scores, change)
    allowed = torch.ones_like(neighbors, dtype=torch.bool)
    if groups:
        allowed &= groups.allow(neighbors)
    if cycle:
        allowed &= cycle.allow(neighbors, queue, max_scores)
    return Mined(neighbors, allowed)


def grouped_losses(
    positives: Tensor,
    anchors: Tensor,
    queue: Tensor,
    groups: Groups | None = None,
    mined: Mined | None = None,
    *,
    temperature: float | Tensor,
    max_scores: int = MAX_SCORES,
) -> dict[str, Tensor]:
    """``contrastive_losses`` over the rows that a rule leaves in, and the neighbours that count.

        L_inst = mean_ij [ logaddexp(p_ij . a_i / tau, lse_ij) - p_ij . a_i / tau ]
        L_nn   = mean over ij with N_ij not empty of [ lse_ij - mean_{n in N_ij} s_ijn ]

    each with the log-sum-exp of its own denominator.

    Args:
        positives: (B, L, C) unit rows p_ij, with gradient.
        anchors: (B, C) unit rows a_i.
        queue: (K, C) unit rows as they were before this step.
        groups: of the B * L positives; None: all rows are in both denominators.
        mined: N_ij; None: no L_nn.
        temperature: tau > 0, or one for each positive, (L, 1).
        max_scores: scores in memory at once; 0: no limit.

    Returns:
        ``loss_inst`` and, with ``mined``, ``loss_nn``: scalars, float32 or float64.
    """
    p = at_least_float32(positives) / temperature
    a = at_least_float32(anchors)
    positive_scores = (p * a[:, None]).sum(dim=2).flatten()
    p = p.flatten(0, 1)
    leave_out = groups.leave_out if groups and not groups.rule.in_inst else None
    lse = log_sum_exp(p, queue, max_scores, leave_out)
    losses = {"loss_inst": info_nce(positive_scores, lse)}
    if mined is not None:
        if leave_out and groups.rule.in_nn:
            lse = log_sum_exp(p, queue, max_scores)
        losses["loss_nn"] = neighbor_loss(p, lse, queue, mined)
    return losses


def neighbor_loss(p: Tensor, lse: Tensor, queue: Tensor, mined: Mined) -> Tensor:
    """L_nn of rows over tau p (M, C), their log-sum-exp (M,) and a queue (K, C)."""
    count = mined.counts.sum(dim=1)
    rows = at_least_float32(queue[mined.rows])  # (M, k, C)
    total = (rows * mined.counts[..., None]).sum(dim=1)
    mean_row = total / count.clamp(min=1)[:, None]
    return mean_where(count > 0, lse - (p * mean_row).sum(dim=1))


def mean_where(chosen: Tensor, terms: Tensor) -> Tensor:
    """The mean of chosen terms (M,) over all processes; 0 where none is chosen.

    Each process has its sum times the number of processes over the number of all chosen ones: the mean over processes,
    which DistributedDataParallel takes of gradients, is then that of one process with all terms.
    """
    of_all = gather_rows(chosen.sum()[None]).sum()
    total = torch.where(chosen, terms, 0).sum()
    return comm.get_world_size() * total / of_all.clamp(min=1)
