"""SOLVER.MINUTES: how many iterations of a pretraining this machine does in that time, measured as the run begins."""

import logging
import tempfile
import time

from revisit.data.catalog import get_records
from revisit.engine.precision import seconds_of
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.modeling.distributed import unwrap

from detectron2.config import CfgNode
from detectron2.utils import comm
from detectron2.utils.events import EventStorage

logger = logging.getLogger(__name__)

# What is decided once: a resumed run keeps it.
DECIDED = (
    "SOLVER.MINUTES", "SOLVER.MAX_ITER", "SOLVER.WARMUP_ITERS", "SOLVER.CHECKPOINT_PERIOD", "TEST.EVAL_PERIOD",
    "NEIGHBORS.WARMUP_EPOCHS",
)  # fmt: skip
STEPS, SECONDS = 40, 8.0  # so many steps are timed, fewer where they would take longer than this
STARTING = 4  # steps that do not count, beside those that workers have ready by then
UNMEASURED = 0.02  # share of the time for what is not measured: checkpoints, pictures, the end


def choose_length(cfg: CfgNode, began: float) -> dict[str, object]:
    """Values of DECIDED for SOLVER.MINUTES on this machine, measured by all processes together; {} where that is 0.

    Args:
        began: when the run began, by time.perf_counter: what has passed since counts.
    """
    if not cfg.SOLVER.MINUTES:
        return {}
    logger.info(f"SOLVER.MINUTES {cfg.SOLVER.MINUTES:g}: measuring training steps")
    step, evaluation = _measure(cfg)
    evaluates = bool(cfg.KNN_EVAL.BANK or cfg.MONITOR.IMAGES)
    on_the_way = evaluates and (cfg.TEST.EVAL_PERIOD > 0 or cfg.TEST.EVAL_EPOCHS > 0)
    count = (1 + (4 if on_the_way else 1)) * evaluates  # the first one is of the network before it learns
    spent = max(comm.all_gather(time.perf_counter() - began))
    left = 60 * cfg.SOLVER.MINUTES * (1 - UNMEASURED) - spent - count * evaluation
    iterations = max(1, int(left / step))
    images = sum(len(get_records(name)) for name in cfg.DATASETS.TRAIN)
    per_epoch = images // cfg.SOLVER.IMS_PER_BATCH
    logger.info(
        f"{iterations:,} iterations, {iterations / per_epoch:.1f} epochs of {images:,} images, by {step:.3f} s each"
        + (f", and {count} evaluations of {evaluation:.1f} s" if evaluates else "")
    )
    values = (
        0.0,
        iterations,
        min(cfg.SOLVER.WARMUP_ITERS, iterations // 10),
        -(-iterations // 10),
        -(-iterations // 4) if on_the_way else 0,
        min(cfg.NEIGHBORS.WARMUP_EPOCHS, iterations // per_epoch // 5),
    )
    return dict(zip(DECIDED, values, strict=True))


def _measure(cfg: CfgNode) -> tuple[float, float]:
    """Seconds of a step, its data included, and of an evaluation, at the pace of the slowest process.

    The network is made for it and thrown away; it does not learn.
    """
    cfg = cfg.clone()
    cfg.SOLVER.BASE_LR, cfg.SOLVER.MAX_ITER, cfg.MODEL.COMPILE = 0.0, 2**20, False
    logging.disable(logging.WARNING)  # the run's own network will say the same
    try:
        loader = PretrainTrainer.build_train_loader(cfg)
        step = PretrainTrainer.build_step(cfg, PretrainTrainer.build_model(cfg), loader)
        step.register_hooks(unwrap(step.model).hooks(cfg, 1))
        step.iter, step.max_iter = cfg.SOLVER.MAX_ITER - 1, cfg.SOLVER.MAX_ITER
        first = [seconds_of(step) for _ in range(STARTING + 2 * cfg.DATALOADER.NUM_WORKERS)]
        count = min(STEPS, max(2, int(SECONDS / max(comm.all_gather(first[-1])))))
        seconds = sum(seconds_of(step) for _ in range(count)) / count
        with tempfile.TemporaryDirectory() as cfg.OUTPUT_DIR, EventStorage(0):  # for its pictures
            start = time.perf_counter()
            PretrainTrainer.test(cfg, step.model)
            evaluation = time.perf_counter() - start
    finally:
        logging.disable(logging.NOTSET)
    both = comm.all_gather((seconds, evaluation))
    return max(one for one, _ in both), max(other for _, other in both)
