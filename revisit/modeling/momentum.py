"""The momentum encoder's weights: an exponential moving average of the encoder's."""

from __future__ import annotations

import copy

import torch
from torch import nn


def momentum_copy(module: nn.Module) -> nn.Module:
    """A copy of ``module`` with the same values, whose parameters take no gradient."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def ema_update(average: nn.Module, source: nn.Module, momentum: float) -> None:
    """theta' <- m theta' + (1 - m) theta, parameters only (METHOD: one step, 4).

    BN running statistics are buffers and stay the average's own.
    """
    for mean, value in zip(average.parameters(), source.parameters(), strict=True):
        mean.mul_(momentum).add_(value, alpha=1 - momentum)
