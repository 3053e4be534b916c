"""What happens around a training step, one small hook per concern; a method's own hooks stand in its file."""

import contextlib
import logging
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from torch import nn

from revisit.checkpoint.run_folder import FINAL, read_metrics, remove_outdated, write_results
from revisit.data.sources.soundness import MAX_SHARE
from revisit.engine.run_lock import check_owner
from revisit.engine.stop_signals import SharedWish, StopSignals
from revisit.errors import InterruptedRunError, StoppedRunError, UserError
from revisit.keys import SWITCH, declare, integer, list_of, registered

from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer, HookBase, hooks
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage
from fvcore.common.registry import Registry

logger = logging.getLogger(__name__)


resumable = partial(declare, may_change=True)
resumable("SOLVER.CHECKPOINTS_KEPT", 3, "So many of the newest checkpoints stay, and the final one; 0: all.", integer())
resumable("SOLVER.CHECKPOINT_KEPT_EVERY", 5, "Every so many-th checkpoint stays too; 0: none.", integer())
resumable(
    "SOLVER.STOP_WITHOUT_CHECKPOINT",
    False,
    "Whether a run stops when a checkpoint cannot be written (a full disk), or continues with a warning.",
    SWITCH,
)


HOOK_REGISTRY = Registry("HOOK")
HOOK_REGISTRY.__doc__ = """
Hooks by the names that HOOKS takes: each is called with the frozen config and returns a ``HookBase``.
"""

declare(
    "HOOKS",
    (),
    "Hooks of your own (docs/extending.md), which follow the optimiser's step and the method's hooks and precede the "
    "evaluation and the checkpoint.",
    list_of(registered(HOOK_REGISTRY, "HOOK_REGISTRY")),
)


class Throughput(HookBase):
    """Log ``images_per_second`` of all processes and ``data_wait_share`` of the step, over ``metrics_period`` steps,
    after the last of which the host has waited for the device; hint when the share is high."""

    HIGH_SHARE = 0.3
    WINDOW = 50  # iterations

    def __init__(self, global_batch: int, num_workers: int, metrics_period: int = 1):
        self._global_batch = global_batch
        self._num_workers = num_workers
        self._period = metrics_period
        self._hinted = False
        self._seconds: list[float] = []

    def before_step(self) -> None:
        self._start = time.perf_counter()

    def after_step(self) -> None:
        self._seconds.append(time.perf_counter() - self._start)
        if (self.trainer.iter + 1) % self._period:
            return
        seconds = sum(self._seconds)
        steps = len(self._seconds)
        self._seconds = []
        storage = self.trainer.storage
        storage.put_scalar("images_per_second", steps * self._global_batch / seconds)
        waited = steps * storage.history("data_time").avg(steps)
        storage.put_scalar("data_wait_share", min(1.0, waited / seconds))
        share = storage.history("data_wait_share").median(max(1, self.WINDOW // self._period))
        done = self.trainer.iter + 1 - self.trainer.start_iter
        if not self._hinted and done >= self.WINDOW and share >= self.HIGH_SHARE:
            self._hinted = True
            logger.warning(
                f"the step waits {share:.0%} of its time for data: raise DATALOADER.NUM_WORKERS (now "
                f"{self._num_workers} per process; this machine has {os.cpu_count()} cores), or take a faster disk"
            )


class Cost(HookBase):
    """Log what the run has cost, s: ``cpu_seconds`` of all its processes, user and system time since they began, and
    ``wall_seconds`` since this was made. A resumed run continues from metrics.json.

    The evaluation after the last step is not counted if this precedes it. Of several processes of a training all are
    taken to cost what the main one does.
    """

    NAMES = ("cpu_seconds", "wall_seconds")

    def __init__(self, metrics: Path):
        self._metrics = metrics
        self._before = (0.0, 0.0)  # of earlier parts of the run, as NAMES
        self._began = time.time()

    def before_train(self) -> None:
        if self.trainer.start_iter and self._metrics.is_file():
            self._before = self._read(self.trainer.start_iter)

    def _read(self, iteration: int) -> tuple[float, ...]:
        """The last numbers of steps before this one."""
        series = read_metrics(self._metrics)
        of_names = ([value for n, value in series.get(name, ()) if n < iteration] for name in self.NAMES)
        return tuple(values[-1] if values else 0.0 for values in of_names)

    def after_step(self) -> None:
        used = (cpu_seconds() * comm.get_world_size(), time.time() - self._began)
        for name, before, now in zip(self.NAMES, self._before, used, strict=True):
            self.trainer.storage.put_scalar(name, before + now, smoothing_hint=False)


def cpu_seconds() -> float:
    """User and system time of this process and of all that it has started; on Linux also of its living workers."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = sum(os.times()[:4])  # its own, and that of children that have ended
    for child in multiprocessing.active_children():
        with contextlib.suppress(OSError):  # it has just ended
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / ticks
    return total


class ReadErrors(HookBase):
    """Log every unreadable image that a neighbour replaced; stop when more than 1 % of all reads fail.

    Judged over all processes after every WINDOW reads, or every epoch of a smaller data set: a share of fewer
    reads says little. ``read_failures`` counts the failures since the run began or was resumed.
    """

    WINDOW = 1000  # reads

    def __init__(self, global_batch: int, iterations_per_epoch: int):
        self._global_batch = global_batch
        self._period = min(iterations_per_epoch, math.ceil(self.WINDOW / global_batch))
        self._steps = 0
        self._failures = 0  # of this process
        self._known: set[str] = set()

    def after_step(self) -> None:
        self.observe(self.trainer.data_loader.last_batch["read_errors"])

    def observe(self, read_errors: list[str]) -> None:
        """Count and log one step's errors on this process."""
        self._steps += 1
        self._failures += len(read_errors)
        for error in set(read_errors) - self._known:
            self._known.add(error)
            logger.warning(f"unreadable image replaced by its neighbour: {error}")
        if self._steps % self._period:
            return
        failures = sum(comm.all_gather(self._failures))
        reads = self._steps * self._global_batch + failures
        if failures > MAX_SHARE * reads:
            examples = [name for names in comm.all_gather(sorted(self._known)[:1]) for name in names]
            raise UserError(
                f"{failures} of {reads} images could not be read, {', '.join(['for one', *examples][:2])}. "
                f"More than {MAX_SHARE:.0%} is not an accident: repair the data set"
            )
        get_event_storage().put_scalar("read_failures", failures, smoothing_hint=False)


class CropFallbacks(HookBase):
    """Log ``crop_fallbacks``: percent of the crops under VIEWS.MIN_OVERLAP or VIEWS.MAX_IOU that never met it."""

    def __init__(self, constrained_per_step: int):
        self._constrained = constrained_per_step

    def after_step(self) -> None:
        share = self.trainer.data_loader.last_batch["num_fallbacks"] / self._constrained
        self.trainer.storage.put_scalar("crop_fallbacks", 100 * share)


class CollapseAlarm(HookBase):
    """Warn, once, when the embeddings of all images have become nearly the same: ``embedding_std`` below LIMIT."""

    LIMIT = 0.02
    WINDOW = 100  # iterations

    def __init__(self, metrics_period: int = 1) -> None:
        self._window = math.ceil(self.WINDOW / metrics_period)
        self._warned = False

    def after_step(self) -> None:
        done = self.trainer.iter + 1 - self.trainer.start_iter
        if self._warned or done < self.WINDOW or "embedding_std" not in self.trainer.storage.histories():
            return
        spread = self.trainer.storage.history("embedding_std").median(self._window)
        if spread < self.LIMIT:
            self._warned = True
            alike = f"collapse: embedding_std {spread:.3f} over {self.WINDOW} iterations: all images look alike"
            logger.warning(f"{alike}. Try a lower SOLVER.BASE_LR or a longer warm-up (docs/reading-a-run.md)")


def write_checkpoint(trainer: DefaultTrainer, folder: Path, name: str, **facts: object) -> str:
    """Write FOLDER/NAME.pth on the main process, while the others wait. Returns what went wrong, or "", on all."""
    trainer.gather_metrics()
    failure = ""
    if comm.is_main_process():
        check_owner(folder)
        try:
            trainer.checkpointer.save(name, iteration=trainer.iter, **facts)
        except OSError as error:
            failure = f"{name}.pth could not be written ({error})"
    return comm.all_gather(failure)[0]


class EndOfRunError(UserError):
    """The run ends before its last iteration and has its result: no failure."""


class Checkpoints(HookBase):
    """Writes a checkpoint every SOLVER.CHECKPOINT_PERIOD, at the end, and when a signal asks the run to stop.

    Must run after all that changes the model or a hook's state, the evaluation included, and before the writers.
    """

    def __init__(self, cfg: CfgNode, signals: StopSignals):
        self._folder = Path(cfg.OUTPUT_DIR)
        self._solver = cfg.SOLVER
        self._signals = signals
        self._agree = SharedWish()

    def after_step(self) -> None:
        iteration = self.trainer.iter
        stop = self._agree(self._signals.received)
        if self.trainer.is_last_step:  # first, because a run that is killed after it has nothing left to do
            if comm.is_main_process():
                write_results(self._folder, self.trainer.results)
            self._save(FINAL, needed=True)
            stop = None
        if stop or (iteration + 1) % self._solver.CHECKPOINT_PERIOD == 0:
            self._save(f"model_{iteration:07d}", needed=bool(stop))
        if self.trainer.ending:
            raise EndOfRunError(self.trainer.ending)
        if stop:
            kind = InterruptedRunError if stop == signal.SIGINT else StoppedRunError
            raise kind(
                f"stopped by {stop.name} after iteration {iteration}, whose checkpoint is in {self._folder}: "
                "the same command with --resume continues"
            )

    def _save(self, name: str, *, needed: bool) -> None:
        """If the disk is full, the run continues, unless the checkpoint is ``needed`` or the config says to stop."""
        failure = write_checkpoint(self.trainer, self._folder, name)
        if comm.is_main_process() and not failure:
            every = self._solver.CHECKPOINT_KEPT_EVERY * self._solver.CHECKPOINT_PERIOD
            remove_outdated(self._folder, self.trainer.iter, newest=self._solver.CHECKPOINTS_KEPT, every=every)
        if failure and (needed or self._solver.STOP_WITHOUT_CHECKPOINT):
            raise UserError(f"{failure}; older checkpoints are untouched: free some space and resume with --resume")
        if failure:
            logger.error(f"NO CHECKPOINT: {failure}. The run continues and will try again; older ones are untouched")


class FreshPreciseBN(HookBase):
    """Detectron2's PreciseBN before each evaluation, from the loader's first batch, whenever the run was resumed.

    Args:
        loader: of ``num_iter`` batches or more, whose iteration starts from the beginning.
    """

    def __init__(self, model: nn.Module, loader: Iterable, num_iter: int):
        self._options = (model, loader, num_iter)

    def after_step(self) -> None:
        if self.trainer.is_evaluated:
            hooks.PreciseBN(1, *self._options).update_stats()
