"""The network with the best evaluation (TEST.KEEP_BEST), and a run that ends when nothing gets better."""

import contextlib
import json
import logging
from dataclasses import asdict, dataclass, replace
from functools import partial

from projects.Reports.main_score import find_score, is_better, main_score
from revisit.checkpoint.run_folder import BEST, BEST_RECORD, read_iteration
from revisit.engine.evaluation_hooks import EVALUATION_HOOK_REGISTRY
from revisit.engine.hooks import write_checkpoint
from revisit.evaluation.judged import nothing_to_evaluate
from revisit.evaluation.registry import is_scored_as, scored_by
from revisit.files import write_whole
from revisit.keys import SWITCH, Decision, Facts, declare, integer

from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer, HookBase
from detectron2.evaluation.testing import flatten_results_dict
from detectron2.utils import comm

logger = logging.getLogger(__name__)


def keep_best(cfg: CfgNode, facts: Facts) -> Decision | None:
    """False where no evaluation before the end has a main score."""
    test = cfg.TEST
    has_scores = main_score(cfg) and not nothing_to_evaluate(cfg) and (test.EVAL_PERIOD != 0 or test.EVAL_EPOCHS > 0)
    if facts.images is None or not test.KEEP_BEST or has_scores:
        return None
    return Decision(False, "nothing is kept, as no labels are evaluated before the end", level=logging.WARNING)


def patience(cfg: CfgNode, facts: Facts) -> Decision | None:
    """0 where nothing is kept to go by."""
    if facts.images is None or not cfg.TEST.PATIENCE or cfg.TEST.KEEP_BEST:
        return None
    return Decision(0, "it goes by what TEST.KEEP_BEST keeps, which is off", level=logging.WARNING)


resumable = partial(declare, may_change=True)
resumable(
    "TEST.KEEP_BEST",
    False,
    "Keep model_best.pth, of the evaluation whose main score, of the first of DATASETS.TEST, is the best: bbox/AP, "
    "sem_seg/mIoU, depth/rmse (the lowest), knn_top1 (which needs KNN_EVAL.BANK). best.json names it.",
    SWITCH,
    resolve=keep_best,
    after="TEST.EVAL_PERIOD",
)
resumable(
    "TEST.PATIENCE",
    0,
    "End a run after so many evaluations in a row without a better one; 0: never.",
    integer(),
    resolve=patience,
    after="TEST.KEEP_BEST",
)


@dataclass(frozen=True)
class Best:
    """The best evaluation so far, as best.json has it; iterations count from 0, as in the names of checkpoints."""

    score: str
    value: float
    iteration: int
    waited: int = 0  # evaluations since then without a better one


# Not Detectron2's BestCheckpointer: it has no state, so that a resumed run would overwrite the best network by a worse.
class BestCheckpoint(HookBase):
    """Writes model_best.pth, then best.json, after an evaluation that is better than all before (TEST.KEEP_BEST), and
    ends the run after TEST.PATIENCE evaluations in a row that are not."""

    _best: Best | None = None

    def state_dict(self) -> dict:
        return {"best": self._best and asdict(self._best), "scored_by": scored_by(self.trainer.cfg)}

    def load_state_dict(self, state: dict) -> None:
        """Forget a best one whose score is of another evaluation, or that model_best.pth is not: it is gone, or of
        steps that this run did not continue from."""
        best = Best(**state["best"]) if state["best"] else None
        if best and not is_scored_as(self.trainer.cfg, state.get("scored_by")):
            logger.warning("the evaluation is another than before: the best is chosen among those from here on")
            return
        if best and read_iteration(self.trainer.folder / f"{BEST}.pth") != best.iteration:
            logger.warning(
                f"{BEST}.pth is not of iteration {best.iteration}, the best so far ({best.score} {best.value:.2f}): "
                "the best is chosen among the evaluations from here on"
            )
            return
        self._best = best
        self.trainer.ending = self._why_it_ends()

    def after_step(self) -> None:
        if not self.trainer.is_evaluated:
            return
        cfg = self.trainer.cfg
        value = find_score(cfg, flatten_results_dict(self.trainer.results)) if comm.is_main_process() else None
        value = comm.all_gather(value)[0]
        if self._best and not is_better(self._best.score, value, self._best.value):
            self._best = replace(self._best, waited=self._best.waited + 1)
        elif not self._save(Best(main_score(cfg), value, self.trainer.iter)):
            return
        if comm.is_main_process():
            with contextlib.suppress(OSError):
                write_whole(self.trainer.folder / BEST_RECORD, json.dumps(asdict(self._best), indent=2))
        if self.trainer.iter + 1 < self.trainer.max_iter:
            self.trainer.ending = self._why_it_ends()

    def _save(self, best: Best) -> bool:
        """Whether the network could be saved as the best one."""
        before = self._best
        self._best = best  # which the checkpoint holds
        if failure := write_checkpoint(self.trainer, self.trainer.folder, BEST, best=asdict(best)):
            self._best = before
            logger.error(f"NO BEST CHECKPOINT: {failure}. The run continues; a better evaluation tries again")
            return False
        logger.info(f"{best.score} {best.value:.2f} is the best so far: {BEST}.pth is of iteration {best.iteration}")
        return True

    def _why_it_ends(self) -> str:
        """Why the run trains no longer, in words; "" if it has patience left."""
        best, patience = self._best, self.trainer.cfg.TEST.PATIENCE
        if not best or not patience or best.waited < patience:
            return ""
        return (
            f"no better {best.score} than {best.value:.2f} in {best.waited} evaluations: {BEST}.pth, of iteration "
            f"{best.iteration}, is the result (TEST.PATIENCE {patience})"
        )


@EVALUATION_HOOK_REGISTRY.register()
def best_checkpoint(trainer: DefaultTrainer) -> BestCheckpoint | None:
    """Of a run with TEST.KEEP_BEST."""
    return BestCheckpoint() if trainer.cfg.TEST.KEEP_BEST else None
