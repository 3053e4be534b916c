"""Length, optimiser and learning rate of a training: epochs in iterations, and what Detectron2 has no keys for."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn, optim

from revisit.errors import expect
from revisit.keys import COUNT, POSITIVE, PRETRAINING, declare, integer, list_of, number, one_of, resolve_by_images
from revisit.modeling.meta_arch.pretraining import method_of
from revisit.plugins import require_package

from detectron2.config import CfgNode
from detectron2.solver import LRMultiplier
from detectron2.solver import build_lr_scheduler as build_detectron2_scheduler
from detectron2.solver.build import get_default_optimizer_params, maybe_add_gradient_clipping
from fvcore.common.param_scheduler import (
    CompositeParamScheduler,
    ConstantParamScheduler,
    PolynomialDecayParamScheduler,
)

declare(
    "SOLVER.EPOCHS",
    0,
    "Length of the run: passes over DATASETS.TRAIN, turned into iterations by its real size.",
    integer(unit="epochs"),
    paper=200,
    may_change=True,
)
declare(
    "SOLVER.MINUTES",
    0.0,
    "Length of a pretraining on this machine, evaluations included: a step is measured as the run begins; iterations, "
    "warm-ups (at most a tenth of the run, of neighbours a fifth), checkpoints (every tenth) and evaluations (every "
    "quarter, of a recipe that evaluates on its way) follow, unless the command, or a file based on the one with "
    "MINUTES, states them. 0: by EPOCHS or MAX_ITER; the one that is typed wins.",
    number(0, unit="minutes"),
    read_by=PRETRAINING,
)
epochs = partial(declare, default=0, rule=integer(unit="epochs"), may_change=True)
epochs("SOLVER.CHECKPOINT_EPOCHS", meaning="Epochs between checkpoints; a positive SOLVER.CHECKPOINT_PERIOD wins.")
epochs("TEST.EVAL_EPOCHS", meaning="Epochs between evaluations; a positive TEST.EVAL_PERIOD, in iterations, wins.")
declare("SOLVER.STEP_EPOCHS", (), "SOLVER.STEPS in epochs; wins over it.", list_of(COUNT, rising=True), may_change=True)
declare(
    "SOLVER.OPTIMIZER",
    "SGD",
    "SGD, Adam, AdamW (whose weight decay is no part of the gradient) or LARS (timm's).",
    one_of("SGD", "Adam", "AdamW", "LARS"),
    paper="SGD",
)
declare(
    "SOLVER.POLY_POWER",
    0.9,
    "Of SOLVER.LR_SCHEDULER_NAME PolynomialLR: the rate is (1 - iteration / MAX_ITER) ** POLY_POWER, without warm-up.",
    POSITIVE,
    may_change=True,
)


def evaluates_on_the_way(cfg: CfgNode) -> bool:
    """Whether a training evaluates before its end."""
    return cfg.TEST.EVAL_PERIOD > 0 or cfg.TEST.EVAL_EPOCHS > 0


def resolve_schedule(cfg: CfgNode, num_images: int) -> None:
    """Turn the lengths given in epochs into iterations, in place; a positive length in iterations wins.

    An epoch has as many iterations as its images have whole batches. Raises UserError where there is none, or no
    length of training at all.
    """
    solver = cfg.SOLVER
    per_epoch = num_images // solver.IMS_PER_BATCH
    few = f"{', '.join(cfg.DATASETS.TRAIN)} has {num_images} images, fewer than one batch of {solver.IMS_PER_BATCH}"
    expect(per_epoch > 0, f"{few}: lower SOLVER.IMS_PER_BATCH (and SOLVER.BASE_LR with it)")
    resolve_by_images(cfg, num_images)
    for node, iterations, epochs in (
        (solver, "MAX_ITER", "EPOCHS"),
        (solver, "CHECKPOINT_PERIOD", "CHECKPOINT_EPOCHS"),
        (cfg.TEST, "EVAL_PERIOD", "EVAL_EPOCHS"),
    ):
        if node[iterations] <= 0 and node[epochs] > 0:
            node[iterations] = node[epochs] * per_epoch
    if solver.STEP_EPOCHS:
        solver.STEPS = tuple(step * per_epoch for step in solver.STEP_EPOCHS)
    if solver.MINUTES and not solver.MAX_ITER:  # measured as the run begins
        return
    expect(solver.MAX_ITER > 0, "no length of training: set SOLVER.EPOCHS or SOLVER.MAX_ITER")
    if solver.CHECKPOINT_PERIOD <= 0:
        solver.CHECKPOINT_PERIOD = solver.MAX_ITER


def build_optimizer(cfg: CfgNode, model: nn.Module) -> optim.Optimizer:
    """SOLVER.OPTIMIZER over Detectron2's parameter groups, SOLVER.WEIGHT_DECAY_NORM and the like included.

    LARS (You et al., arXiv 1708.03888) adapts the rate of tensors with weight decay; one without it takes SGD's step.
    Raises UserError for LARS without timm, and for a model with nothing to train.
    """
    solver = cfg.SOLVER
    groups = get_default_optimizer_params(
        model,
        base_lr=solver.BASE_LR,
        weight_decay=solver.WEIGHT_DECAY,
        weight_decay_norm=solver.WEIGHT_DECAY_NORM,
        bias_lr_factor=solver.BIAS_LR_FACTOR,
        weight_decay_bias=solver.WEIGHT_DECAY_BIAS,
    )
    frozen = f"MODEL.BACKBONE.FREEZE_AT {cfg.MODEL.BACKBONE.FREEZE_AT}"
    expect(groups, f"{frozen} leaves {cfg.MODEL.META_ARCHITECTURE} nothing to train: expected a smaller number")
    # All tensors in a kernel. Clipping has to see gradients without the scale of float16, which fused steps remove.
    fused, momentum = not solver.CLIP_GRADIENTS.ENABLED, {"momentum": solver.MOMENTUM, "nesterov": solver.NESTEROV}
    if solver.OPTIMIZER == "LARS":
        missing = "SOLVER.OPTIMIZER LARS is timm's: run pip install timm, or choose SGD"
        kind, options = require_package("timm.optim", missing).Lars, momentum
    else:
        kind = getattr(optim, solver.OPTIMIZER)
        options = {"fused": fused, **(momentum if solver.OPTIMIZER == "SGD" else {})}
    kind = maybe_add_gradient_clipping(cfg, kind)
    return kind(groups, lr=solver.BASE_LR, weight_decay=solver.WEIGHT_DECAY, **options)


def build_lr_scheduler(cfg: CfgNode, optimizer: optim.Optimizer) -> optim.lr_scheduler.LRScheduler:
    """SOLVER.LR_SCHEDULER_NAME: PolynomialLR, or one of Detectron2's.

    A method may let the rate be 0 for some iterations; the whole schedule, its warm-up included, comes after them.
    """
    method, length = method_of(cfg), cfg.SOLVER.MAX_ITER
    wait = method.iterations_before_learning(cfg) if method else 0
    if not wait:
        return _schedule(cfg, optimizer)
    parts = [ConstantParamScheduler(0.0), _schedule(of_length(cfg, length - wait), optimizer)._multiplier]
    whole = CompositeParamScheduler(parts, [wait / length, 1 - wait / length], ["fixed", "rescaled"])
    return LRMultiplier(optimizer, whole, length)


def of_length(cfg: CfgNode, iterations: int) -> CfgNode:
    """The config of a run of so many iterations."""
    cfg = cfg.clone()
    cfg.defrost()
    cfg.SOLVER.MAX_ITER = iterations
    return cfg


def share_of_rate(cfg: CfgNode, length: int) -> Callable[[int], float]:
    """The learning rate of a schedule of ``length`` iterations, those of no rate left out, as a share of BASE_LR."""
    unused = optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    multiplier = _schedule(of_length(cfg, length), unused)._multiplier
    return lambda iteration: multiplier(iteration / length)


def _schedule(cfg: CfgNode, optimizer: optim.Optimizer) -> LRMultiplier:
    solver = cfg.SOLVER
    if solver.LR_SCHEDULER_NAME == "PolynomialLR":
        # Not torch's class of that name: Detectron2 0.6 does not save its state, and a resumed run decays anew.
        return LRMultiplier(optimizer, PolynomialDecayParamScheduler(1.0, solver.POLY_POWER), solver.MAX_ITER)
    return build_detectron2_scheduler(cfg, optimizer)
