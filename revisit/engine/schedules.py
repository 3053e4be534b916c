"""Learning rates over a run, by SOLVER.LR_SCHEDULER_NAME: their steps and warm-up in iterations, for their batch.

An entry of LR_SCHEDULE_REGISTRY is a function of the config. It returns fvcore's ParamScheduler: the rate as a share of
SOLVER.BASE_LR, from the beginning of the run, 0, to its end, 1. ``reads`` says which keys it goes by.
"""

from collections.abc import Callable

import torch
from torch import nn, optim

from revisit.compat.private_names import schedule_of
from revisit.engine.run_length import LENGTH_OF_RUN, iterations_per_epoch
from revisit.keys import (
    COUNT,
    POSITIVE,
    Decision,
    Facts,
    Rule,
    declare,
    integer,
    is_free,
    list_of,
    of_detectron2,
    registered,
    with_values,
)

from detectron2.config import CfgNode
from detectron2.solver import build_lr_scheduler
from fvcore.common.param_scheduler import ParamScheduler, PolynomialDecayParamScheduler
from fvcore.common.registry import Registry

LR_SCHEDULE_REGISTRY = Registry("LR_SCHEDULE")
Schedule = Callable[[CfgNode], ParamScheduler]

LEAST_WITH_STEPS = 10  # iterations, below which shares of a run give no steps
_SHARE = Rule("a share of the run, between 0 and 1", lambda v: type(v) is float and 0 < v < 1)
_SHARES = list_of(_SHARE, least=1, rising=True)
_STEPS = list_of(integer(1), rising=True)

of_detectron2(
    "SOLVER.LR_SCHEDULER_NAME", rule=registered(LR_SCHEDULE_REGISTRY, "LR_SCHEDULE_REGISTRY"), may_change=True
)
declare(
    "SOLVER.POLY_POWER",
    0.9,
    "Of SOLVER.LR_SCHEDULER_NAME PolynomialLR: the rate is (1 - iteration / MAX_ITER) ** POLY_POWER, without warm-up.",
    POSITIVE,
    may_change=True,
)


def reads(*keys: str) -> Callable[[Schedule], Schedule]:
    """Mark a schedule as one that goes by these keys, whose values are then checked and printed."""

    def mark(schedule: Schedule) -> Schedule:
        schedule.reads = keys
        return schedule

    return mark


def build_schedule(cfg: CfgNode, length: int) -> ParamScheduler:
    """The rate of a run of ``length`` iterations, as a share of SOLVER.BASE_LR."""
    schedule = LR_SCHEDULE_REGISTRY.get(cfg.SOLVER.LR_SCHEDULER_NAME)
    return schedule(with_values(cfg, {"SOLVER.MAX_ITER": length}))


def share_of_rate(cfg: CfgNode, length: int) -> Callable[[int], float]:
    """The learning rate of a schedule of ``length`` iterations, those of no rate left out, as a share of BASE_LR."""
    schedule = build_schedule(cfg, length)
    return lambda iteration: schedule(iteration / length)


def schedule_reads(name: str, key: str) -> bool:
    """Whether the schedule of this name goes by a key."""
    return key in getattr(LR_SCHEDULE_REGISTRY.get(name), "reads", ())


@LR_SCHEDULE_REGISTRY.register()
@reads("SOLVER.WARMUP_ITERS", "SOLVER.STEPS")
def WarmupMultiStepLR(cfg: CfgNode) -> ParamScheduler:
    """Detectron2's: SOLVER.GAMMA times less at each of SOLVER.STEPS."""
    return _of_detectron2(cfg)


@LR_SCHEDULE_REGISTRY.register()
@reads("SOLVER.WARMUP_ITERS")
def WarmupCosineLR(cfg: CfgNode) -> ParamScheduler:
    """Detectron2's: half a cosine, down to 0."""
    return _of_detectron2(cfg)


@LR_SCHEDULE_REGISTRY.register()
@reads("SOLVER.POLY_POWER")
def PolynomialLR(cfg: CfgNode) -> ParamScheduler:
    """A power of what is left of the run."""
    return PolynomialDecayParamScheduler(1.0, cfg.SOLVER.POLY_POWER)


def _of_detectron2(cfg: CfgNode) -> ParamScheduler:
    unused = optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    return schedule_of(build_lr_scheduler(cfg, unused))


def steps(cfg: CfgNode, facts: Facts) -> Decision | None:
    """SOLVER.STEP_EPOCHS, or SOLVER.STEPS that are shares of the run, in iterations."""
    length = cfg.SOLVER.MAX_ITER
    if length > 0 and not cfg.SOLVER.STEP_EPOCHS and _SHARES.holds(cfg.SOLVER.STEPS):
        if length < LEAST_WITH_STEPS:
            return Decision((), f"{length} iterations are too few for steps")
        values = {min(max(1, round(share * length)), length - 1) for share in cfg.SOLVER.STEPS}
        return Decision(tuple(sorted(values)), f"shares of {length} iterations")
    if facts.images is None or not cfg.SOLVER.STEP_EPOCHS:
        return None
    epochs = cfg.SOLVER.EPOCHS
    per_epoch = length / epochs if epochs else iterations_per_epoch(cfg, facts.images)  # as a resumed run counts them
    values = tuple(round(epoch * per_epoch) for epoch in cfg.SOLVER.STEP_EPOCHS)
    return Decision(values, f"SOLVER.STEP_EPOCHS of {round(per_epoch, 3)} iterations each")


def warmup(cfg: CfgNode, facts: Facts) -> Decision | None:
    """A tenth of the run for SOLVER.WARMUP_ITERS -1."""
    length = cfg.SOLVER.MAX_ITER
    if cfg.SOLVER.WARMUP_ITERS >= 0 or length <= 0:
        return None
    return Decision(length // 10, f"a tenth of {length} iterations")


def rate_of_batch(cfg: CfgNode, facts: Facts) -> Decision | None:
    """SOLVER.BASE_LR for the batch of this run, in proportion to the one that it is stated for."""
    reference = cfg.SOLVER.REFERENCE_BATCH
    batch = cfg.SOLVER.IMS_PER_BATCH
    rate = cfg.SOLVER.BASE_LR
    if reference in (0, batch):
        return None
    if not is_free("SOLVER.BASE_LR", facts.stated_nearer(facts.key)):
        return Decision(batch, f"SOLVER.BASE_LR {rate:g} is stated itself, and stays")
    why = f"a rate of {rate:g} for batches of {reference} images, of which these have {batch}"
    return Decision(batch, why, {"SOLVER.BASE_LR": rate * batch / reference})


of_detectron2(
    "SOLVER.STEPS",
    rule=Rule(f"{_STEPS.expected}; or {_SHARES.expected}", lambda v: _STEPS.holds(v) or _SHARES.holds(v)),
    may_change=True,
    decides="steps",
    resolve=steps,
    after=LENGTH_OF_RUN,
)
of_detectron2(
    "SOLVER.WARMUP_ITERS",
    rule=integer(-1, unit="(-1: a tenth of the run)"),
    may_change=True,
    resolve=warmup,
    after=LENGTH_OF_RUN,
)
declare(
    "SOLVER.STEP_EPOCHS",
    (),
    "SOLVER.STEPS in epochs: the one that is stated nearer to the command counts, of both in one place the epochs.",
    list_of(COUNT, rising=True),
    may_change=True,
    decides="steps",
    off=(),
)
declare(
    "SOLVER.REFERENCE_BATCH",
    0,
    "The SOLVER.IMS_PER_BATCH that a recipe states its SOLVER.BASE_LR for: of another batch the rate is in proportion "
    "(arXiv 1706.02677), unless it is typed too. 0: the rate stays as it is. Detectron2's SOLVER.REFERENCE_WORLD_SIZE "
    "is about processes, and is not read.",
    integer(unit="images"),
    may_change=True,
    resolve=rate_of_batch,
    after="SOLVER.IMS_PER_BATCH",
)
