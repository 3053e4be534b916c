"""A run's evaluations, and what follows each of them before the checkpoint of the same step, which holds both."""

import logging
from pathlib import Path

from revisit.checkpoint.run_folder import RESULTS, UNEVALUATED
from revisit.errors import UserError

from detectron2.engine import HookBase
from detectron2.evaluation.testing import flatten_results_dict
from detectron2.utils import comm
from fvcore.common.registry import Registry

EVALUATION_HOOK_REGISTRY = Registry("EVALUATION_HOOK")
EVALUATION_HOOK_REGISTRY.__doc__ = """
What follows each evaluation of a training, in this order, before its checkpoint: functions of the trainer, each of
which returns a ``HookBase``, or None. ``trainer.results`` are the scores. A hook that sets ``trainer.ending``, in
words, ends the run after this step.
"""

logger = logging.getLogger(__name__)


# Not Detectron2's EvalHook: it evaluates for the last time after the last checkpoint, which would then lack the scores.
class Evaluation(HookBase):
    """Scores the network every TEST.EVAL_PERIOD iterations and after the last one: ``trainer.results``, on the main
    process alone. Must run after all that changes the network."""

    def __init__(self, folder: Path):
        self._folder = folder

    def before_train(self) -> None:
        if comm.is_main_process():
            (self._folder / RESULTS).unlink(missing_ok=True)  # of another network than the last of this run

    def after_step(self) -> None:
        if not self.trainer.is_evaluated:
            return
        self.trainer.gather_metrics()  # a loss that was not finite stops the run here
        try:
            results = self.trainer.test(self.trainer.cfg, self.trainer.model, self.trainer.evaluators)
        except Exception as error:
            if comm.is_main_process():  # an evaluation that fails costs nobody the training before it
                self._save_unevaluated(error)
            raise
        self.trainer.results = results
        self.trainer.storage.put_scalars(smoothing_hint=False, **flatten_results_dict(results))

    def _save_unevaluated(self, error: Exception) -> None:
        """Save the network, and let the message of a mistake of the user's end with the way on."""
        try:
            self.trainer.checkpointer.save(UNEVALUATED, iteration=self.trainer.iter)
        except OSError:
            return
        path = self._folder / f"{UNEVALUATED}.pth"
        way = f"the evaluation failed; the network of this step is in {path}, which --eval-only --weights {path} scores"
        if isinstance(error, UserError):
            error.args = (f"{error}; {way}, and --resume continues from the last checkpoint",)
        else:
            logger.error(f"{way} once its cause is mended")
