"""Optimisers, by SOLVER.OPTIMIZER.

An entry of OPTIMIZER_REGISTRY is a function of the config and of parameter groups, each with its ``params``, their
``names`` in the model, and its own ``lr`` and ``weight_decay``. It may split or change them. It returns torch's
Optimizer.
"""

from typing import Any

import torch
from torch import optim

from revisit.keys import declare, registered
from revisit.plugins import require_package

from detectron2.config import CfgNode
from fvcore.common.registry import Registry

OPTIMIZER_REGISTRY = Registry("OPTIMIZER")

declare(
    "SOLVER.OPTIMIZER",
    "SGD",
    "SGD, Adam, AdamW (whose weight decay is no part of the gradient) or LARS (timm's).",
    registered(OPTIMIZER_REGISTRY, "OPTIMIZER_REGISTRY"),
    paper="SGD",
)


def _shared(cfg: CfgNode) -> dict[str, Any]:
    """Options of every optimiser of torch's. Fused, it updates all tensors in one kernel; but clipping has to see
    gradients without the scale of float16, which fused steps remove."""
    solver = cfg.SOLVER
    return {
        "lr": solver.BASE_LR,
        "weight_decay": solver.WEIGHT_DECAY,
        "fused": not solver.CLIP_GRADIENTS.ENABLED,
    }


@OPTIMIZER_REGISTRY.register()
def SGD(cfg: CfgNode, groups: list[dict]) -> optim.Optimizer:
    """By SOLVER.MOMENTUM and NESTEROV."""
    optimizer = optim.SGD(groups, momentum=cfg.SOLVER.MOMENTUM, nesterov=cfg.SOLVER.NESTEROV, **_shared(cfg))
    optimizer.register_step_pre_hook(_begin_momentum)
    return optimizer


def _begin_momentum(optimizer: optim.Optimizer, *_: object) -> None:
    """Give a parameter, before its first step, the momentum 0, from which that step is as ever. A fused step that
    float16 skips would leave what lay in memory there, and one by which only some parameters begin would fail."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not group["momentum"] or parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)


@OPTIMIZER_REGISTRY.register()
def Adam(cfg: CfgNode, groups: list[dict]) -> optim.Optimizer:
    """Torch's, with its own momenta."""
    return optim.Adam(groups, **_shared(cfg))


@OPTIMIZER_REGISTRY.register()
def AdamW(cfg: CfgNode, groups: list[dict]) -> optim.Optimizer:
    """Adam whose weight decay is no part of the gradient."""
    return optim.AdamW(groups, **_shared(cfg))


@OPTIMIZER_REGISTRY.register()
def LARS(cfg: CfgNode, groups: list[dict]) -> optim.Optimizer:
    """Adapts the rate of tensors with weight decay (You et al., arXiv 1708.03888); one without it takes SGD's step.

    Raises:
        UserError: timm is not installed.
    """
    solver = cfg.SOLVER
    lars = require_package("timm.optim", "SOLVER.OPTIMIZER LARS is timm's: run pip install timm, or choose SGD").Lars
    return lars(
        groups,
        lr=solver.BASE_LR,
        weight_decay=solver.WEIGHT_DECAY,
        momentum=solver.MOMENTUM,
        nesterov=solver.NESTEROV,
    )
