"""What this machine does, measured as a training begins: for SOLVER.MEASURE_PRECISION and SOLVER.MINUTES."""

import logging
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, repeat
from time import perf_counter

import torch
from torch import nn

from projects.Planning.evaluation_cost import seconds_of_evaluation, since
from projects.Planning.step_cost import random_views, take
from revisit.engine.finetune_trainer import FinetuneTrainer
from revisit.engine.precision import PARTS, check_precision
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.run_length import evaluates_on_the_way, iterations_per_epoch
from revisit.engine.train_step import TrainStep
from revisit.engine.trainer import RevisitTrainer
from revisit.errors import UserError, expect, translated
from revisit.evaluation.judged import nothing_to_evaluate
from revisit.keys import (
    FINETUNING,
    PRETRAINING,
    SWITCH,
    Decision,
    Facts,
    declare,
    is_free,
    is_read,
    number,
    value_of,
)
from revisit.modeling.distributed import unwrap
from revisit.modeling.meta_arch.pretraining import method_of, metrics_period

from detectron2.config import CfgNode
from detectron2.utils import comm
from detectron2.utils.events import EventStorage

logger = logging.getLogger(__name__)

LENGTH = (
    "SOLVER.MAX_ITER",
    "SOLVER.WARMUP_ITERS",
    "SOLVER.CHECKPOINT_PERIOD",
    "TEST.EVAL_PERIOD",
    "NEIGHBORS.WARMUP_EPOCHS",
)  # what SOLVER.MINUTES decides
# Values of PARTS by name, the more exact ones first.
CANDIDATES = {
    "float32": (False, "bfloat16", False),
    "float32 channels-last": (False, "bfloat16", True),
    "bfloat16 channels-last": (True, "bfloat16", True),
}
MARGIN = 1.05  # how many times as fast a later one has to be: below that, noise would decide between equals
LAUNCH_BOUND = 0.9  # share of a GPU's step that the host spends launching, beyond which the GPU waits for it
TURNS, SECONDS = 5, 5.0  # steps of each candidate that count, fewer where all of them would take longer than this
STARTING = 4  # steps that do not count for a length, in addition to those that workers have ready by then
TIMED, TIMED_SECONDS = 40, 8.0  # steps that do, fewer where they would take longer than this
SCORING = 0.3  # share of the time for evaluations, beyond which the last one is the only one
UNMEASURED = 0.02  # share of the time for what is not measured: checkpoints, pictures, the end

_BEGAN = perf_counter()


def can_measure(facts: Facts) -> bool:
    """Whether all processes of a training are there to take steps."""
    return facts.launched and facts.images is not None


def measured_precision(cfg: CfgNode, facts: Facts) -> Decision | None:
    """What a step is the fastest in, once the processes of the run can take one."""
    has_measured = facts.before.get("SOLVER.MEASURE_PRECISION") is False
    if not cfg.SOLVER.MEASURE_PRECISION or not (has_measured or can_measure(facts)):
        return None
    if has_measured:
        return Decision(False, "", {key: value_of(cfg, key) for key in PARTS}, kept=True)
    with translated("measuring training steps"):
        return Decision(False, "as measured", choose_precision(cfg))


def length_in_time(cfg: CfgNode, facts: Facts) -> Decision | None:
    """SOLVER.MINUTES in iterations, once the processes of the run can take some."""
    solver = cfg.SOLVER
    if not solver.MINUTES:
        return None
    asked = f"SOLVER.MINUTES {solver.MINUTES:g}"
    expect(
        is_read(cfg, facts.key),
        f"{asked}: {cfg.MODEL.META_ARCHITECTURE} has no length in time: expected SOLVER.MAX_ITER, or SOLVER.EPOCHS",
    )
    other = next((key for key in ("EPOCHS", "MAX_ITER") if solver[key]), "")
    expect(not other, f"SOLVER.{other} and {asked} both say how long the run is: expected one of them")
    if facts.before.get("SOLVER.MINUTES") == 0 and facts.before.get("SOLVER.MAX_ITER", 0) > 0:
        return _length_of_run(cfg, facts, asked)
    if not can_measure(facts):
        return None
    with translated("measuring training steps"):
        nearer = facts.stated_nearer("SOLVER.MINUTES")
        free = [key for key in LENGTH if is_read(cfg, key) and is_free(key, nearer)]
        return Decision(0.0, f"as measured for {asked}", choose_length(cfg, facts.images, _BEGAN, free))


def _length_of_run(cfg: CfgNode, facts: Facts, asked: str) -> Decision:
    """What a run began with: another time to measure by comes too late."""
    values = {key: facts.before.get(key, value_of(cfg, key)) for key in LENGTH}
    epochs = facts.before.get("SOLVER.EPOCHS", 0)
    if not epochs:
        return Decision(0.0, f"as the run began; SOLVER.MAX_ITER changes it, no longer {asked}", values)
    return Decision(
        0.0,
        f"{asked} has no effect, as the run began by SOLVER.EPOCHS {epochs}: change these, or SOLVER.MAX_ITER",
        values,
        level=logging.WARNING,
    )


declare(
    "SOLVER.MEASURE_PRECISION",
    False,
    "Before a pretraining begins, measure what it is the fastest in here, and set SOLVER.AMP and MODEL.CHANNELS_LAST "
    "to that, in place of SOLVER.PRECISION.",
    SWITCH,
    read_by=PRETRAINING,
    decides="precision",
    off=False,
    resolve=measured_precision,
    after="SOLVER.PRECISION",
)
declare(
    "SOLVER.MINUTES",
    0.0,
    "Length of a training on this machine, evaluations included: a step is measured as the run begins; iterations, "
    "warm-ups (at most a tenth of the run, of neighbours a fifth), checkpoints (every tenth) and evaluations (every "
    "quarter, of a recipe that evaluates on its way, or one where they would take long) follow, unless the command, or "
    "a file based on the one with MINUTES, states them. 0: by EPOCHS or MAX_ITER; the one that is typed wins.",
    number(0, unit="minutes"),
    read_by=(PRETRAINING, *FINETUNING),
    decides="length",
    off=0.0,
    resolve=length_in_time,
    also_decides=LENGTH,
    after=("SOLVER.PRECISION", "SOLVER.MEASURE_PRECISION"),
)


def choose_precision(cfg: CfgNode) -> dict[str, object]:
    """The values of PARTS that a step is the fastest in, measured by all processes together."""
    candidates = {}
    for name, values in CANDIDATES.items():
        candidate = cfg.clone()
        candidate.merge_from_list([*chain.from_iterable(zip(PARTS, values, strict=True))])
        try:
            check_precision(candidate)
        except UserError as error:
            logger.info(f"SOLVER.MEASURE_PRECISION leaves out {name}: {error}")
        else:
            candidates[name] = candidate
    logger.info(f"SOLVER.MEASURE_PRECISION: measuring training steps in {', '.join(candidates)}")
    speeds, launching = measure_speeds(candidates)
    chosen = choose(speeds)
    figures = ", ".join(f"{name} {speed:.1f}" for name, speed in speeds.items())
    logger.info(f"images per second: {figures}. This run computes in {chosen}")
    if launching[chosen] > LAUNCH_BOUND and not cfg.MODEL.COMPILE:
        logger.info(
            f"The host needs {launching[chosen]:.0%} of a step to launch its kernels, so the GPU waits for it: larger "
            "batches, or MODEL.COMPILE True, which takes minutes at the start, would use more of it"
        )
    return dict(zip(PARTS, CANDIDATES[chosen], strict=True))


def choose(speeds: Mapping[str, float]) -> str:
    """The fastest by name, of speeds of which the more exact ones stand first; a later one has to lead by MARGIN."""
    chosen, *others = speeds
    for name in others:
        if speeds[name] > MARGIN * speeds[chosen]:
            chosen = name
    return chosen


def measure_speeds(candidates: Mapping[str, CfgNode]) -> tuple[dict[str, float], dict[str, float]]:
    """By candidate: images per second of all processes at the pace of the slowest, and which share of a GPU's step the
    host is busy with it, 0 on a CPU.

    A candidate for which the memory does not suffice is left out where one process runs; of several processes the
    others would wait for it. Candidates take turns, and the fastest turn counts, because whatever else this machine
    does only slows them down.
    """
    with _quietly():
        steps, warm_up = _steps_that_fit(candidates)
        slowest_warm_up = max(comm.all_gather(warm_up))
        turns = min(TURNS, int(SECONDS / slowest_warm_up)) or 1
        seconds = [{name: seconds_of(step) for name, step in steps.items()} for _ in range(turns)]
        launching = {name: _launching_share(step) for name, step in steps.items()}
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()  # of which the log says the run's own
    fastest_turn = {name: min(turn[name] for turn in seconds) for name in steps}
    of_processes = comm.all_gather(fastest_turn)
    speeds = {}
    for name in steps:
        of_slowest = max(of_process[name] for of_process in of_processes)
        speeds[name] = candidates[name].SOLVER.IMS_PER_BATCH / of_slowest
    return speeds, launching


def _steps_that_fit(candidates: Mapping[str, CfgNode]) -> tuple[dict[str, TrainStep], float]:
    """By candidate, a step for which the memory suffices; and the seconds of their first ones together.

    Raises:
        torch.OutOfMemoryError: it suffices for none; of several processes, it does not suffice for one candidate.
    """
    steps: dict[str, TrainStep] = {}
    seconds = 0.0
    *_, last = candidates
    for name, candidate in candidates.items():
        try:
            step = _step_on_noise(candidate)
            seconds += seconds_of(step)
            steps[name] = step
        except torch.OutOfMemoryError:
            none_fits = name == last and not steps
            if none_fits or comm.get_world_size() > 1:
                raise
            step = None  # whose memory the next one needs
    return steps, seconds


def choose_length(cfg: CfgNode, images: int, began: float, free: Collection[str] = LENGTH) -> dict[str, object]:
    """Values of LENGTH for SOLVER.MINUTES on this machine, measured by all processes together.

    Args:
        images: of DATASETS.TRAIN.
        began: when the run began, by time.perf_counter: what has passed since counts.
        free: keys of LENGTH that the user leaves open.
    """
    logger.info(f"SOLVER.MINUTES {cfg.SOLVER.MINUTES:g}: measuring training steps")
    step, evaluation = _step_and_evaluation(cfg)
    evaluates = not nothing_to_evaluate(cfg)
    on_the_way = evaluates and evaluates_on_the_way(cfg)
    per_epoch = iterations_per_epoch(cfg, images)
    period = _stated_period(cfg, per_epoch, free)
    if evaluates and period > 0:
        step += evaluation / period
    parts = 4 if on_the_way and period <= 0 and not _is_short(cfg, evaluation, free) else 1
    before = int(method_of(cfg) is not None)  # a pretraining also scores the network before it learns
    count = (before + parts) * evaluates
    spent = max(comm.all_gather(perf_counter() - began))
    left = 60 * cfg.SOLVER.MINUTES * (1 - UNMEASURED) - spent - count * evaluation
    iterations = max(1, int(left / step))
    if left < step:
        asked = f"SOLVER.MINUTES {cfg.SOLVER.MINUTES:g}"
        needed = 60 * cfg.SOLVER.MINUTES - left + step
        logger.warning(f"{asked} leaves no time for training, as the start and evaluations take {needed:.0f} s")
    logger.info(
        f"{iterations:,} iterations, {iterations / per_epoch:.1f} epochs of {images:,} images, by {step:.3f} s each"
        + (f", and {count} evaluations of {evaluation:.1f} s" if evaluates else "")
    )
    values = {
        "SOLVER.MAX_ITER": iterations,
        "SOLVER.WARMUP_ITERS": min(cfg.SOLVER.WARMUP_ITERS, iterations // 10),
        "SOLVER.CHECKPOINT_PERIOD": -(-iterations // 10),
        "TEST.EVAL_PERIOD": -(-iterations // parts) if on_the_way else 0,
        "NEIGHBORS.WARMUP_EPOCHS": min(cfg.NEIGHBORS.WARMUP_EPOCHS, int(iterations // per_epoch // 5)),
    }
    return {key: values[key] for key in free}


def _stated_period(cfg: CfgNode, per_epoch: float, free: Collection[str]) -> int:
    """Iterations between evaluations as the user has them; 0 where they are left open, -1 for a quarter of the run."""
    if "TEST.EVAL_PERIOD" in free:
        return 0
    return cfg.TEST.EVAL_PERIOD or round(cfg.TEST.EVAL_EPOCHS * per_epoch)


def _is_short(cfg: CfgNode, evaluation: float, free: Collection[str]) -> bool:
    """Whether four evaluations of so many seconds would take more than SCORING of the run, which leaves them open."""
    longest = SCORING * 60 * cfg.SOLVER.MINUTES
    return "TEST.EVAL_PERIOD" in free and 4 * evaluation > longest


def _step_and_evaluation(cfg: CfgNode) -> tuple[float, float]:
    """Seconds of a step, its data included, and of an evaluation, at the pace of the slowest process."""
    cfg = cfg.clone()
    cfg.SOLVER.MAX_ITER = 2**20
    with _quietly():
        step = _step_that_learns_nothing(cfg, _trainer_of(cfg).build_train_loader(cfg))
        step.iter = cfg.SOLVER.MAX_ITER - 1
        step.max_iter = cfg.SOLVER.MAX_ITER
        first = [seconds_of(step) for _ in range(STARTING + 2 * cfg.DATALOADER.NUM_WORKERS)]
        count = min(TIMED, max(2, int(TIMED_SECONDS / max(comm.all_gather(first[-1])))))
        seconds = sum(seconds_of(step) for _ in range(count)) / count
        with tempfile.TemporaryDirectory() as cfg.OUTPUT_DIR, EventStorage(0):  # for its pictures
            evaluation = _seconds_of_evaluation(cfg, step.model)
    both = comm.all_gather((seconds, evaluation))
    return max(one for one, _ in both), max(other for _, other in both)


def _seconds_of_evaluation(cfg: CfgNode, model: nn.Module) -> float:
    if method_of(cfg) is None:
        return seconds_of_evaluation(cfg, model)
    start = perf_counter()
    PretrainTrainer.test(cfg, model)
    return perf_counter() - start


def _step_on_noise(cfg: CfgNode) -> TrainStep:
    """Of a training after its last iteration, where every loss has joined, and one whose losses are not read."""
    views = random_views(cfg, cfg.SOLVER.IMS_PER_BATCH // comm.get_world_size())
    step = _step_that_learns_nothing(cfg, repeat(views))
    period = metrics_period(cfg)
    step.iter = step.max_iter = -(-cfg.SOLVER.MAX_ITER // period) * period
    return step


def _step_that_learns_nothing(cfg: CfgNode, batches: Iterable) -> TrainStep:
    """A step of a network that is made for it and thrown away, with the method's hooks, which belong to it."""
    cfg = cfg.clone()
    cfg.SOLVER.BASE_LR = 0.0  # noise is no reason to diverge
    cfg.MODEL.COMPILE = False  # which takes minutes
    trainer = _trainer_of(cfg)
    step = trainer.build_step(cfg, trainer.build_model(cfg), batches)
    if method_of(cfg):
        step.register_hooks(unwrap(step.model).hooks(cfg, 1))
    return step


def _trainer_of(cfg: CfgNode) -> type[RevisitTrainer]:
    return PretrainTrainer if method_of(cfg) else FinetuneTrainer


@contextmanager
def _quietly() -> Iterator[None]:
    """The run's own network will say the same."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def seconds_of(step: TrainStep) -> float:
    """How long a step takes, its data and its hooks included, waited for."""
    return _launched_and_done(step)[1]


def _launching_share(step: TrainStep) -> float:
    launched, done = _launched_and_done(step)
    return launched / done if torch.cuda.is_initialized() else 0.0


def _launched_and_done(step: TrainStep) -> tuple[float, float]:
    """Seconds until the host has launched a step, and until the device has done it."""
    start = perf_counter()
    take(step)
    launched = perf_counter() - start
    return launched, since(start)
