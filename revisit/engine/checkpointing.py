"""When a run writes checkpoints, which it keeps, and how it stops."""

import logging
import signal
from pathlib import Path

from revisit.checkpoint.run_folder import FINAL, periodic_name, remove_outdated
from revisit.engine.stop_signals import SharedWish, StopSignals
from revisit.errors import InterruptedRunError, StoppedRunError, UserError

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from detectron2.utils import comm

logger = logging.getLogger(__name__)


class Checkpoints(HookBase):
    """Writes a checkpoint every SOLVER.CHECKPOINT_PERIOD iterations, at the end, and after the step in which a signal
    asked the run to stop.

    Belongs after all that changes the model or the state of a hook, and before evaluation and writers; on all
    processes, of which the main one writes and the others wait for it. The newest SOLVER.CHECKPOINTS_KEPT stay, and
    every SOLVER.CHECKPOINT_KEPT_EVERY-th one.
    """

    def __init__(self, cfg: CfgNode, signals: StopSignals):
        self._folder = Path(cfg.OUTPUT_DIR)
        self._period = cfg.SOLVER.CHECKPOINT_PERIOD
        self._newest = cfg.SOLVER.CHECKPOINTS_KEPT
        self._every = cfg.SOLVER.CHECKPOINT_KEPT_EVERY * self._period
        self._stop_on_failure = cfg.SOLVER.STOP_WITHOUT_CHECKPOINT
        self._signals = signals
        self._wish = SharedWish()

    def after_step(self) -> None:
        iteration = self.trainer.iter
        done = iteration + 1 >= self.trainer.max_iter
        stop = self._wish(self._signals.received)
        if done:  # first, because a run that is killed after it, and resumed, has nothing left to do
            self._save(FINAL, iteration, needed=True)
            stop = None
        if stop or (iteration + 1) % self._period == 0:
            self._save(periodic_name(iteration), iteration, needed=bool(stop))
        if stop:
            kind = InterruptedRunError if stop == signal.SIGINT else StoppedRunError
            raise kind(
                f"stopped by {stop.name} after iteration {iteration}, whose checkpoint is in {self._folder}: "
                "the same command with --resume continues"
            )

    def _save(self, name: str, iteration: int, *, needed: bool) -> None:
        """Where the disk is full the run continues, unless the checkpoint is ``needed`` or the config says to stop."""
        self.trainer.gather_state()
        failure = ""
        if comm.is_main_process():
            try:
                self.trainer.checkpointer.save(name, iteration=iteration)
            except OSError as error:
                failure = f"{name}.pth could not be written ({error})"
            else:
                remove_outdated(self._folder, iteration, newest=self._newest, every=self._every)
        failure = comm.all_gather(failure)[0]  # and wait for the main process
        if failure and (needed or self._stop_on_failure):
            raise UserError(f"{failure}; older checkpoints are untouched: free some space and resume with --resume")
        if failure:
            logger.error(f"NO CHECKPOINT: {failure}. The run continues and will try again; older ones are untouched")
