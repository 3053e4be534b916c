"""A cosine with restarts: SOLVER.LR_SCHEDULER_NAME CosineWithRestarts (Loshchilov and Hutter, arXiv 1608.03983)."""

import math

from revisit.engine.schedules import LR_SCHEDULE_REGISTRY, reads
from revisit.keys import COUNT, declare

from detectron2.config import CfgNode
from detectron2.solver import WarmupParamScheduler
from fvcore.common.param_scheduler import ParamScheduler

declare("SOLVER.CYCLES", 4, "Cosines of SOLVER.LR_SCHEDULER_NAME CosineWithRestarts.", COUNT, may_change=True)


class Restarts(ParamScheduler):
    """As many cosines from 1 to 0, one after the other."""

    def __init__(self, cycles: int):
        self._cycles = cycles

    def __call__(self, where: float) -> float:
        """``where``: 0 at the beginning of the run, 1 at its end."""
        return 0.5 * (1 + math.cos(math.pi * (where * self._cycles % 1)))


@LR_SCHEDULE_REGISTRY.register()
@reads("SOLVER.CYCLES", "SOLVER.WARMUP_ITERS")
def CosineWithRestarts(cfg: CfgNode) -> ParamScheduler:
    solver = cfg.SOLVER
    warmup = solver.WARMUP_ITERS / solver.MAX_ITER  # a share of the run
    return WarmupParamScheduler(Restarts(solver.CYCLES), solver.WARMUP_FACTOR, warmup, solver.WARMUP_METHOD)
