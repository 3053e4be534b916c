"""Optimisers and schedules beyond Detectron2's: Adam, and the polynomial decay of DeepLab."""

from __future__ import annotations

from torch import nn, optim

from detectron2.config import CfgNode
from detectron2.solver import LRMultiplier
from detectron2.solver import build_lr_scheduler as build_detectron2_scheduler
from detectron2.solver import build_optimizer as build_sgd
from detectron2.solver.build import get_default_optimizer_params, maybe_add_gradient_clipping
from fvcore.common.param_scheduler import PolynomialDecayParamScheduler


def build_optimizer(cfg: CfgNode, model: nn.Module) -> optim.Optimizer:
    """SOLVER.OPTIMIZER over Detectron2's parameter groups, SOLVER.WEIGHT_DECAY_NORM and the like included."""
    solver = cfg.SOLVER
    if solver.OPTIMIZER == "SGD":
        return build_sgd(cfg, model)
    groups = get_default_optimizer_params(
        model,
        base_lr=solver.BASE_LR,
        weight_decay=solver.WEIGHT_DECAY,
        weight_decay_norm=solver.WEIGHT_DECAY_NORM,
        bias_lr_factor=solver.BIAS_LR_FACTOR,
        weight_decay_bias=solver.WEIGHT_DECAY_BIAS,
    )
    adam = maybe_add_gradient_clipping(cfg, optim.Adam)
    return adam(groups, lr=solver.BASE_LR, weight_decay=solver.WEIGHT_DECAY)


def build_lr_scheduler(cfg: CfgNode, optimizer: optim.Optimizer) -> optim.lr_scheduler.LRScheduler:
    """SOLVER.LR_SCHEDULER_NAME: PolynomialLR, or one of Detectron2's."""
    solver = cfg.SOLVER
    if solver.LR_SCHEDULER_NAME == "PolynomialLR":
        # Not torch's class of that name: Detectron2 0.6 does not save its state, and a resumed run decays anew.
        return LRMultiplier(optimizer, PolynomialDecayParamScheduler(1.0, solver.POLY_POWER), solver.MAX_ITER)
    return build_detectron2_scheduler(cfg, optimizer)
