"""A cosine with restarts: SOLVER.LR_SCHEDULER_NAME CosineWithRestarts (Loshchilov and Hutter, arXiv 1608.03983)."""

from revisit.engine.schedules import LR_SCHEDULE_REGISTRY, reads
from revisit.keys import COUNT, declare

from detectron2.config import CfgNode
from detectron2.solver import WarmupParamScheduler
from fvcore.common.param_scheduler import CompositeParamScheduler, CosineParamScheduler, ParamScheduler

declare("SOLVER.CYCLES", 4, "Cosines of SOLVER.LR_SCHEDULER_NAME CosineWithRestarts.", COUNT, may_change=True)


@LR_SCHEDULE_REGISTRY.register()
@reads("SOLVER.CYCLES", "SOLVER.WARMUP_ITERS")
def CosineWithRestarts(cfg: CfgNode) -> ParamScheduler:
    solver, cycles = cfg.SOLVER, cfg.SOLVER.CYCLES
    restarts = CompositeParamScheduler(
        [CosineParamScheduler(1, 0)] * cycles, [1 / cycles] * cycles, ["rescaled"] * cycles
    )
    warmup = solver.WARMUP_ITERS / solver.MAX_ITER
    return WarmupParamScheduler(restarts, solver.WARMUP_FACTOR, warmup, solver.WARMUP_METHOD)
