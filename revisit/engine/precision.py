"""SOLVER.PRECISION auto: what this machine computes a pretraining fastest in, measured before it begins."""

import logging
from collections.abc import Mapping
from itertools import chain, repeat
from time import perf_counter

import torch

from revisit.engine.config_checks import check_hardware
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.step_cost import random_views
from revisit.engine.train_step import TrainStep
from revisit.errors import UserError
from revisit.keys import declare, one_of
from revisit.modeling.distributed import unwrap
from revisit.modeling.meta_arch.pretraining import metrics_period

from detectron2.config import CfgNode
from detectron2.utils import comm
from detectron2.utils.events import EventStorage

logger = logging.getLogger(__name__)

DECIDED = ("SOLVER.AMP.ENABLED", "SOLVER.AMP.DTYPE", "MODEL.CHANNELS_LAST")
# Their values by name, the more exact ones first.
CANDIDATES = {
    "float32": (False, "bfloat16", False),
    "float32 channels-last": (False, "bfloat16", True),
    "bfloat16 channels-last": (True, "bfloat16", True),
}
MARGIN = 1.05  # how many times as fast a later one has to be: below that, noise would decide between equals
LAUNCH_BOUND = 0.9  # share of a GPU's step that the host spends launching, beyond which the GPU waits for it
STEPS, SECONDS = 5, 5.0  # so many of each candidate count, fewer where all of them would take longer than this


declare(
    "SOLVER.PRECISION",
    "auto_on_gpu",
    "auto: before a pretraining begins, measure what it is the fastest in here, and set SOLVER.AMP and "
    "MODEL.CHANNELS_LAST to that. '' leaves them as they are. auto_on_gpu: auto on a GPU, '' on a CPU.",
    one_of("", "auto", "auto_on_gpu"),
)


def choose_precision(cfg: CfgNode) -> dict[str, object]:
    """Values by key that SOLVER.PRECISION auto stands for on this machine, measured by all processes together; {} where
    it is not auto.

    SOLVER.PRECISION is "" among them, and what it stood for is in DECIDED: whoever resumes the run, or starts another
    one from its config.yaml, computes in the same and measures nothing. Call it before global generators are seeded.
    """
    if cfg.SOLVER.PRECISION != "auto":
        return {}
    candidates = _candidates(cfg)
    logger.info(f"SOLVER.PRECISION auto: measuring training steps in {', '.join(candidates)}")
    speeds, launching = measure_speeds(candidates)
    chosen = choose(speeds)
    figures = ", ".join(f"{name} {speed:.1f}" for name, speed in speeds.items())
    logger.info(f"images per second: {figures}. This run computes in {chosen}")
    if launching[chosen] > LAUNCH_BOUND and not cfg.MODEL.COMPILE:
        logger.info(
            f"The host needs {launching[chosen]:.0%} of a step to launch its kernels, so the GPU waits for it: larger "
            "batches, or MODEL.COMPILE True, which takes minutes at the start, would use more of it"
        )
    return _values(chosen)


def choose(speeds: Mapping[str, float]) -> str:
    """The fastest by name, of speeds of which the more exact ones stand first; a later one has to lead by MARGIN."""
    chosen, *others = speeds
    for name in others:
        if speeds[name] > MARGIN * speeds[chosen]:
            chosen = name
    return chosen


def measure_speeds(candidates: Mapping[str, CfgNode]) -> tuple[dict[str, float], dict[str, float]]:
    """By name of the candidate: images per second of all processes, which call it together, at the pace of the slowest,
    and which share of a GPU's step the host is busy with it, 0 on a CPU.

    The networks are made for it and thrown away. A candidate for which the memory does not suffice is left out where
    one process runs; of several processes the others would wait for it. Candidates take turns, and the fastest
    turn counts, because whatever else this machine does only slows them down.
    """
    *_, last = candidates.values()
    logging.disable(logging.WARNING)  # the run's own network will say the same
    try:
        steps, warm_up = {}, 0.0
        for name, candidate in candidates.items():
            try:
                step = _build_step(candidate)
                warm_up += seconds_of(step)
                steps[name] = step
            except torch.OutOfMemoryError:
                if comm.get_world_size() > 1 or (candidate is last and not steps):
                    raise
                step = None
        turns = min(STEPS, int(SECONDS / max(comm.all_gather(warm_up)))) or 1
        seconds = [{name: seconds_of(step) for name, step in steps.items()} for _ in range(turns)]
        launching = {name: _launching_share(step) for name, step in steps.items()}
    finally:
        logging.disable(logging.NOTSET)
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()  # of which the log says the run's own
    least = comm.all_gather({name: min(turn[name] for turn in seconds) for name in steps})
    batch = next(iter(candidates.values())).SOLVER.IMS_PER_BATCH
    speeds = {name: batch / max(of_process[name] for of_process in least) for name in steps}
    return speeds, launching


def _candidates(cfg: CfgNode) -> dict[str, CfgNode]:
    """Configs to measure, by name, of what can be computed here."""
    candidates = {}
    for name in CANDIDATES:
        # Noise is no reason to diverge, and to compile takes minutes.
        values = {**_values(name), "SOLVER.BASE_LR": 0.0, "MODEL.COMPILE": False}
        candidate = cfg.clone()
        candidate.merge_from_list(list(chain.from_iterable(values.items())))
        try:
            check_hardware(candidate)
        except UserError as error:
            logger.info(f"SOLVER.PRECISION auto leaves out {name}: {error}")
        else:
            candidates[name] = candidate
    return candidates


def _values(name: str) -> dict[str, object]:
    return {"SOLVER.PRECISION": "", **dict(zip(DECIDED, CANDIDATES[name], strict=True))}


def _build_step(cfg: CfgNode) -> TrainStep:
    """Of a training after its last iteration, where every loss has joined; the method's hooks belong to it."""
    views = random_views(cfg, cfg.SOLVER.IMS_PER_BATCH // comm.get_world_size())
    step = PretrainTrainer.build_step(cfg, PretrainTrainer.build_model(cfg), repeat(views))
    step.register_hooks(unwrap(step.model).hooks(cfg, 1))
    period = metrics_period(cfg)
    step.iter = step.max_iter = -(-cfg.SOLVER.MAX_ITER // period) * period  # not one whose losses are read
    return step


def seconds_of(step: TrainStep) -> float:
    """How long a step takes, its data and its hooks included, waited for."""
    return _launched_and_done(step)[1]


def _launching_share(step: TrainStep) -> float:
    launched, done = _launched_and_done(step)
    return launched / done if torch.cuda.is_initialized() else 0.0


def _launched_and_done(step: TrainStep) -> tuple[float, float]:
    """Seconds until the host has launched a step, and until the device has done it."""
    start = perf_counter()
    with EventStorage(step.iter) as step.storage:
        step.before_step()
        step.run_step()
        step.after_step()
    launched = perf_counter()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return launched - start, perf_counter() - start
