"""What happens around a training step, one small hook per concern; a method's own hooks stand in its file."""

import logging
import math
import signal
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from revisit.checkpoint.run_folder import FINAL, remove_outdated, write_results
from revisit.data.sources.inspection import MOST_UNREADABLE
from revisit.engine.run_lock import check_owner
from revisit.engine.stop_signals import SharedWish, StopSignals
from revisit.errors import InterruptedRunError, StoppedRunError, UserError
from revisit.keys import SWITCH, declare, integer, list_of, registered
from revisit.modeling.own_numbers import unmoved_numbers

from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer, HookBase, hooks
from detectron2.modeling.meta_arch import DenseDetector
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage
from fvcore.common.registry import Registry
from fvcore.nn.precise_bn import get_bn_modules

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

STEP_HOOK_REGISTRY = Registry("STEP_HOOK")
STEP_HOOK_REGISTRY.__doc__ = """
Hooks of every training, whatever a config says: functions of the trainer, each of which returns a ``HookBase``, or
None. They follow the optimiser's step and the method's hooks, and precede what is slow and the evaluation.
"""

declare(
    "HOOKS",
    (),
    "Hooks of your own (docs/extending.md), which follow the optimiser's step and the method's hooks and precede the "
    "evaluation and the checkpoint.",
    list_of(registered(HOOK_REGISTRY, "HOOK_REGISTRY")),
)


class ReadErrors(HookBase):
    """Log every unreadable image that a neighbour replaced; stop when more than 1 % of all reads fail.

    Judged over all processes after every WINDOW reads, or every epoch of a smaller data set: a share of fewer
    reads says little. ``read_failures`` counts the failures since the run began or was resumed. Of a set whose look
    before the run found 1 % unreadable, an epoch that leaves some ``images`` out may read all of these.
    """

    WINDOW = 1000  # reads

    def __init__(self, global_batch: int, iterations_per_epoch: int, images: int = 0):
        self._global_batch = global_batch
        self._left_out = max(0, images - iterations_per_epoch * global_batch) / iterations_per_epoch  # a step
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
        if failures > MOST_UNREADABLE * (reads + self._steps * self._left_out):
            examples = [name for names in comm.all_gather(sorted(self._known)[:1]) for name in names]
            raise UserError(
                f"{failures} of {reads} images could not be read, {', '.join(['for one', *examples][:2])}. "
                f"More than {MOST_UNREADABLE:.0%} is not an accident: repair the data set"
            )
        get_event_storage().put_scalar("read_failures", failures, smoothing_hint=False)


class CropFallbacks(HookBase):
    """Log ``crop_fallbacks``: percent of the crops under VIEWS.MIN_OVERLAP or VIEWS.MAX_IOU that never met it."""

    def __init__(self, constrained_per_step: int):
        self._constrained = constrained_per_step

    def after_step(self) -> None:
        share = self.trainer.data_loader.last_batch["num_fallbacks"] / self._constrained
        self.trainer.storage.put_scalar("crop_fallbacks", 100 * share)


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

    Args:
        solver: a config's SOLVER, which says how many stay, and whether one that cannot be written ends the run.
    """

    def __init__(self, folder: Path, signals: StopSignals, solver: CfgNode):
        self._folder = folder
        self._signals = signals
        self._solver = solver
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


class LossNormalizers(HookBase):
    """Lets checkpoints hold what Detectron2's dense detectors (RetinaNet) divide their losses by: a running mean of how
    many anchors have an object, a plain number apart from their tensors, another one in each process.

    Must run after all that calls the network in training mode, so after precise batch norm, too.
    """

    def __init__(self, model: nn.Module):
        self._detectors = {name: part for name, part in model.named_modules() if isinstance(part, DenseDetector)}
        self._of_processes: list[dict[str, float]] = []  # by rank, then by the detector's name in the network

    def state_dict(self) -> dict:
        return {"of_processes": self._of_processes} if self._detectors else {}

    def load_state_dict(self, state: dict) -> None:
        values = state["of_processes"]
        own = values[comm.get_rank() % len(values)]  # a run may have more processes than before
        for name, value in own.items():
            self._detectors[name].loss_normalizer = value

    def after_step(self) -> None:
        if not self._detectors:
            return
        trained = {name: part for name, part in self._detectors.items() if hasattr(part, "loss_normalizer")}
        self._of_processes = comm.all_gather({name: part.loss_normalizer for name, part in trained.items()})


class TrainedStatistics(HookBase):
    """Lets a training continue after an evaluation with its own running statistics of batch norm: a teacher labels by
    them, and would label otherwise where it is evaluated more often. An evaluation replaces them by precise ones, and
    on every process by those of the main process. Checkpoints hold both.

    Must run before all that changes statistics for an evaluation.
    """

    def __init__(self, model: nn.Module):
        self._model = model
        layers = get_bn_modules(model)
        parts = [(name, part) for name, part in model.named_modules() if part in layers]
        self._names = [f"{name}.{buffer}" for name, part in parts for buffer, _ in part.named_buffers()]
        self._own: dict[str, Tensor] = {}  # by name, from an evaluation until the next step

    def state_dict(self) -> dict:
        return {"own": self._own} if self._own else {}

    def load_state_dict(self, state: dict) -> None:
        self._own = state["own"]

    def after_step(self) -> None:
        if self.trainer.is_evaluated:
            self._own = {name: self._model.get_buffer(name).clone() for name in self._names}

    def before_step(self) -> None:
        for name, values in self._own.items():
            self._model.get_buffer(name).copy_(values)
        self._own = {}


class FreshPreciseBN(HookBase):
    """Detectron2's PreciseBN before each evaluation, from the loader's first batch, whenever the run was resumed. What
    the network keeps besides its tensors stays.

    Args:
        loader: of ``num_iter`` batches or more, whose iteration starts from the beginning.
    """

    def __init__(self, model: nn.Module, loader: Iterable, num_iter: int):
        self._model = model
        self._options = (model, loader, num_iter)

    def after_step(self) -> None:
        if self.trainer.is_evaluated:
            with unmoved_numbers(self._model):
                hooks.PreciseBN(1, *self._options).update_stats()
