"""The momentum encoder's weights: an exponential moving average of the encoder's."""

import copy

import torch
from torch import nn

from revisit.compat.private_names import move_means
from revisit.modeling.distributed import unwrap

from detectron2.engine import HookBase


def momentum_copy(module: nn.Module) -> nn.Module:
    """A copy of ``module`` with the same values, whose parameters take no gradient."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def ema_update(average: nn.Module, source: nn.Module, momentum: float) -> None:
    """theta' <- m theta' + (1 - m) theta, parameters only (docs/method.md: Momentum encoder).

    BN running statistics are buffers and stay the average's own.
    """
    move_means(list(average.parameters()), list(source.parameters()), momentum)


def update_momentum_encoder(model: nn.Module) -> None:
    """One EMA step, by the model's ``momentum``, of every part ``momentum_NAME`` towards the part ``NAME``."""
    for name, part in model.named_children():
        if name.startswith("momentum_"):
            ema_update(part, getattr(model, name.removeprefix("momentum_")), model.momentum)


class MomentumUpdate(HookBase):
    """Move the momentum encoder towards the encoder (docs/method.md: Momentum encoder), directly after Detectron2's
    LRScheduler and before any checkpointer, whose checkpoint of step i holds step i's momentum encoder."""

    def after_step(self) -> None:
        update_momentum_encoder(unwrap(self.trainer.model))
