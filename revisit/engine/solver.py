"""Length, optimiser and learning rate of a training: epochs in iterations, and what Detectron2 has no keys for."""

import logging
from collections.abc import Callable
from functools import partial

from torch import nn, optim

from revisit.engine.optimizers import OPTIMIZER_REGISTRY
from revisit.engine.schedules import build_schedule
from revisit.errors import UserError, expect
from revisit.evaluation.main_score import nothing_to_evaluate
from revisit.keys import (
    COUNT,
    Decision,
    Facts,
    Rule,
    alternatives,
    counted,
    declare,
    integer,
    list_of,
    of_detectron2,
    value_of,
)
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode
from detectron2.solver import LRMultiplier
from detectron2.solver.build import get_default_optimizer_params, maybe_add_gradient_clipping
from fvcore.common.param_scheduler import CompositeParamScheduler, ConstantParamScheduler

LEAST_WITH_STEPS = 10  # iterations, below which shares of a run give no steps
_SHARE = Rule("a share of the run, between 0 and 1", lambda v: type(v) is float and 0 < v < 1)
_SHARES = list_of(_SHARE, least=1, rising=True)
_STEPS = list_of(integer(), rising=True)


def fit_batch(cfg: CfgNode, facts: Facts) -> Decision | None:
    """All images of a pretraining, where they are fewer than a batch and its method can do with them."""
    batch, method = cfg.SOLVER.IMS_PER_BATCH, method_of(cfg)
    if method is None or facts.images is None:
        return None
    processes = facts.processes or 1
    share = facts.images // processes
    fitting = share * processes
    if not 1 < fitting < batch or share % cfg.SOLVER.ACCUMULATION_STEPS:
        return None
    smaller = cfg.clone()
    smaller.SOLVER.IMS_PER_BATCH = fitting
    try:
        method.check(counted(smaller, facts.images), share)
    except UserError:
        return None  # iterations_per_epoch says what to change
    return Decision(fitting, f"{facts.images} images are fewer than a batch of {batch}", level=logging.WARNING)


def iterations_per_epoch(cfg: CfgNode, images: int) -> int:
    """Whole batches of so many images. Raises UserError where there is none."""
    batch = cfg.SOLVER.IMS_PER_BATCH
    few = f"{', '.join(cfg.DATASETS.TRAIN)} has {images} images, fewer than one batch of {batch}"
    expect(images >= batch, f"{few}: lower SOLVER.IMS_PER_BATCH (and SOLVER.BASE_LR with it)")
    return images // batch


def in_iterations(cfg: CfgNode, facts: Facts, epochs: int) -> Decision:
    """A number of epochs as iterations."""
    per_epoch = iterations_per_epoch(cfg, facts.images)
    return Decision(epochs * per_epoch, f"{epochs} epochs of {per_epoch} iterations")


def length(cfg: CfgNode, facts: Facts) -> Decision | None:
    """SOLVER.EPOCHS in iterations, unless another key says how long the run is."""
    if facts.images is None:
        return None
    iterations_per_epoch(cfg, facts.images)
    if cfg.SOLVER.MAX_ITER <= 0 and cfg.SOLVER.EPOCHS > 0:
        return in_iterations(cfg, facts, cfg.SOLVER.EPOCHS)
    is_said = any(value_of(cfg, key.name) for key in alternatives()["length"])
    expect(is_said, "no length of training: set SOLVER.EPOCHS or SOLVER.MAX_ITER")
    return None


def checkpoint_period(cfg: CfgNode, facts: Facts) -> Decision | None:
    """SOLVER.CHECKPOINT_EPOCHS in iterations, or the whole run."""
    solver = cfg.SOLVER
    if facts.images is None or solver.CHECKPOINT_PERIOD > 0:
        return None
    if solver.CHECKPOINT_EPOCHS > 0:
        return in_iterations(cfg, facts, solver.CHECKPOINT_EPOCHS)
    return Decision(solver.MAX_ITER, "one checkpoint, at the end") if solver.MAX_ITER > 0 else None


def steps(cfg: CfgNode, facts: Facts) -> Decision | None:
    """SOLVER.STEP_EPOCHS, or SOLVER.STEPS that are shares of the run, in iterations."""
    length = cfg.SOLVER.MAX_ITER
    if length > 0 and not cfg.SOLVER.STEP_EPOCHS and _SHARES.holds(cfg.SOLVER.STEPS):
        if length < LEAST_WITH_STEPS:
            return Decision((), f"{length} iterations are too few for steps")
        values = tuple(int(share * length) for share in cfg.SOLVER.STEPS)
        return Decision(values, f"shares of {length} iterations")
    if facts.images is None or not cfg.SOLVER.STEP_EPOCHS:
        return None
    per_epoch = iterations_per_epoch(cfg, facts.images)
    values = tuple(epoch * per_epoch for epoch in cfg.SOLVER.STEP_EPOCHS)
    return Decision(values, f"SOLVER.STEP_EPOCHS of {per_epoch} iterations each")


def warmup(cfg: CfgNode, facts: Facts) -> Decision | None:
    """A tenth of the run for SOLVER.WARMUP_ITERS -1."""
    length = cfg.SOLVER.MAX_ITER
    if cfg.SOLVER.WARMUP_ITERS >= 0 or length <= 0:
        return None
    return Decision(length // 10, f"a tenth of {length} iterations")


def evaluation_epochs(cfg: CfgNode, facts: Facts) -> Decision | None:
    """0 where there is nothing to evaluate."""
    lacking = nothing_to_evaluate(cfg)
    if facts.images is None or not lacking or cfg.TEST.EVAL_EPOCHS <= 0:
        return None
    return Decision(0, f"nothing is evaluated: {lacking}", level=logging.WARNING)


def evaluation_period(cfg: CfgNode, facts: Facts) -> Decision | None:
    """TEST.EVAL_EPOCHS in iterations; 0 where there is nothing to evaluate."""
    if facts.images is None:
        return None
    if cfg.TEST.EVAL_PERIOD > 0:
        lacking = nothing_to_evaluate(cfg)
        return Decision(0, f"nothing is evaluated: {lacking}", level=logging.WARNING) if lacking else None
    if cfg.TEST.EVAL_EPOCHS <= 0:
        return None
    return in_iterations(cfg, facts, cfg.TEST.EVAL_EPOCHS)


of_detectron2("SOLVER.IMS_PER_BATCH", rule=COUNT, resolve=fit_batch)
of_detectron2("SOLVER.MAX_ITER", resolve=length, after="SOLVER.IMS_PER_BATCH")
of_detectron2("SOLVER.CHECKPOINT_PERIOD", resolve=checkpoint_period, after="SOLVER.MAX_ITER")
_LENGTH_OF_RUN = ("SOLVER.MAX_ITER", "SOLVER.MINUTES")
of_detectron2(
    "SOLVER.STEPS",
    rule=Rule(f"{_STEPS.expected}; or {_SHARES.expected}", lambda v: _STEPS.holds(v) or _SHARES.holds(v)),
    may_change=True,
    decides="steps",
    resolve=steps,
    after=_LENGTH_OF_RUN,
)
of_detectron2(
    "SOLVER.WARMUP_ITERS",
    rule=integer(-1, unit="(-1: a tenth of the run)"),
    may_change=True,
    resolve=warmup,
    after=_LENGTH_OF_RUN,
)
of_detectron2("TEST.EVAL_PERIOD", resolve=evaluation_period, after=("TEST.EVAL_EPOCHS", "SOLVER.IMS_PER_BATCH"))
declare(
    "SOLVER.EPOCHS",
    0,
    "Length of the run: passes over DATASETS.TRAIN, turned into iterations by its real size.",
    integer(unit="epochs"),
    paper=200,
    may_change=True,
    decides="length",
    off=0,
)
epochs = partial(declare, default=0, rule=integer(unit="epochs"), may_change=True, off=0)
kept = "Epochs between checkpoints; a positive SOLVER.CHECKPOINT_PERIOD wins."
epochs("SOLVER.CHECKPOINT_EPOCHS", meaning=kept, decides="checkpoints")
judged = "Epochs between evaluations; a positive TEST.EVAL_PERIOD, in iterations, wins."
epochs(
    "TEST.EVAL_EPOCHS",
    meaning=judged,
    decides="evaluations",
    resolve=evaluation_epochs,
    after=("KNN_EVAL.BANK", "MONITOR.IMAGES"),
)
declare(
    "SOLVER.STEP_EPOCHS",
    (),
    "SOLVER.STEPS in epochs; wins over it.",
    list_of(COUNT, rising=True),
    may_change=True,
    decides="steps",
    off=(),
)


def evaluates_on_the_way(cfg: CfgNode) -> bool:
    """Whether a training evaluates before its end."""
    return cfg.TEST.EVAL_PERIOD > 0 or cfg.TEST.EVAL_EPOCHS > 0


def build_optimizer(cfg: CfgNode, model: nn.Module) -> optim.Optimizer:
    """SOLVER.OPTIMIZER over Detectron2's parameter groups, SOLVER.WEIGHT_DECAY_NORM and the like included.

    Raises:
        UserError: the model has nothing to train, or a package is missing.
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
    optimizer = OPTIMIZER_REGISTRY.get(solver.OPTIMIZER)(cfg, groups)
    return maybe_add_gradient_clipping(cfg, optimizer)


def build_lr_scheduler(cfg: CfgNode, optimizer: optim.Optimizer) -> LRMultiplier:
    """SOLVER.LR_SCHEDULER_NAME over the run.

    A method may let the rate be 0 for some iterations; the whole schedule, its warm-up included, comes after them.
    """
    method, length = method_of(cfg), cfg.SOLVER.MAX_ITER
    wait = method.iterations_before_learning(cfg) if method else 0
    schedule = build_schedule(of_length(cfg, length - wait))
    if wait:
        parts = [ConstantParamScheduler(0.0), schedule]
        schedule = CompositeParamScheduler(parts, [wait / length, 1 - wait / length], ["fixed", "rescaled"])
    return LRMultiplier(optimizer, schedule, length)


def of_length(cfg: CfgNode, iterations: int) -> CfgNode:
    """The config of a run of so many iterations."""
    cfg = cfg.clone()
    cfg.defrost()
    cfg.SOLVER.MAX_ITER = iterations
    return cfg


def share_of_rate(cfg: CfgNode, length: int) -> Callable[[int], float]:
    """The learning rate of a schedule of ``length`` iterations, those of no rate left out, as a share of BASE_LR."""
    schedule = build_schedule(of_length(cfg, length))
    return lambda iteration: schedule(iteration / length)
