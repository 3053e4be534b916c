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
    means, values = list(average.parameters()), list(source.parameters())
    torch._foreach_mul_(means, momentum)  # a few kernels for all tensors, with the numbers of one at a time
    torch._foreach_add_(means, values, alpha=1 - momentum)
