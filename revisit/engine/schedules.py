"""Learning rates over a run, by SOLVER.LR_SCHEDULER_NAME.

An entry of LR_SCHEDULE_REGISTRY is a function of the config. It returns fvcore's ParamScheduler: the rate as a share of
SOLVER.BASE_LR, from the beginning of the run, 0, to its end, 1. ``reads`` says which keys it goes by.
"""

from collections.abc import Callable

import torch
from torch import nn, optim

from revisit.compat.private_names import schedule_of
from revisit.keys import POSITIVE, declare, of_detectron2, registered

from detectron2.config import CfgNode
from detectron2.solver import build_lr_scheduler
from fvcore.common.param_scheduler import ParamScheduler, PolynomialDecayParamScheduler
from fvcore.common.registry import Registry

LR_SCHEDULE_REGISTRY = Registry("LR_SCHEDULE")
Schedule = Callable[[CfgNode], ParamScheduler]

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


def build_schedule(cfg: CfgNode) -> ParamScheduler:
    """The rate of a run of SOLVER.MAX_ITER iterations, as a share of SOLVER.BASE_LR."""
    return LR_SCHEDULE_REGISTRY.get(cfg.SOLVER.LR_SCHEDULER_NAME)(cfg)


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
