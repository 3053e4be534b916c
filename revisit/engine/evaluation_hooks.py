"""A run's evaluations, the best network, and what training has changed.

All of it happens before the checkpoint of the same step, which therefore holds it.
"""

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from revisit.checkpoint.run_folder import BEST, BEST_RECORD, RESULTS, UNEVALUATED, read_iteration
from revisit.engine.hooks import write_checkpoint
from revisit.errors import UserError
from revisit.evaluation.main_score import find_score, is_better, main_score, nothing_to_evaluate
from revisit.evaluation.registry import PretrainingEvaluation, Score
from revisit.files import write_whole
from revisit.keys import SWITCH, Decision, Facts, declare, integer

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from detectron2.evaluation.testing import flatten_results_dict
from detectron2.utils import comm

logger = logging.getLogger(__name__)


def keep_best(cfg: CfgNode, facts: Facts) -> Decision | None:
    """False where no evaluation before the end has a main score."""
    test = cfg.TEST
    has_scores = main_score(cfg) and not nothing_to_evaluate(cfg) and (test.EVAL_PERIOD > 0 or test.EVAL_EPOCHS > 0)
    if facts.images is None or not test.KEEP_BEST or has_scores:
        return None
    return Decision(False, "nothing is kept, as no labels are evaluated before the end", level=logging.WARNING)


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
resumable("TEST.PATIENCE", 0, "End a run after so many evaluations in a row without a better one; 0: never.", integer())


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
        comm.synchronize()  # what it took differs, and the next step should not be blamed

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

    def __init__(self, folder: Path, patience: int):
        self._folder = folder
        self._patience = patience
        self._best: Best | None = None

    def state_dict(self) -> dict:
        return {"best": self._best and asdict(self._best)}

    def load_state_dict(self, state: dict) -> None:
        """Forget a best one that model_best.pth is not: it is gone, or of steps that this run did not continue from."""
        best = Best(**state["best"]) if state["best"] else None
        if best and read_iteration(self._folder / f"{BEST}.pth") != best.iteration:
            so_far = f"{BEST}.pth is not of iteration {best.iteration}, the best so far ({best.score} {best.value:.2f})"
            logger.warning(f"{so_far}: the best is chosen among the evaluations from here on")
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
                write_whole(self._folder / BEST_RECORD, json.dumps(asdict(self._best), indent=2))
        if self.trainer.iter + 1 < self.trainer.max_iter:
            self.trainer.ending = self._why_it_ends()

    def _save(self, best: Best) -> bool:
        """Whether the network could be saved as the best one."""
        before = self._best
        self._best = best  # which the checkpoint holds
        if failure := write_checkpoint(self.trainer, self._folder, BEST, best=asdict(best)):
            self._best = before
            logger.error(f"NO BEST CHECKPOINT: {failure}. The run continues; a better evaluation tries again")
            return False
        logger.info(f"{best.score} {best.value:.2f} is the best so far: {BEST}.pth is of iteration {best.iteration}")
        return True

    def _why_it_ends(self) -> str:
        """Why the run trains no longer, in words; "" if it has patience left."""
        best = self._best
        if not best or not self._patience or best.waited < self._patience:
            return ""
        no_better = f"no better {best.score} than {best.value:.2f} in {best.waited} evaluations"
        return f"{no_better}: {BEST}.pth, of iteration {best.iteration}, is the result (TEST.PATIENCE {self._patience})"


# Measured in docs/results/tournament.md.
WHAT_HELPS = (
    "What helped small runs most: two crops instead of small ones (VIEWS.NUM_SMALL 0), an objective without a queue, a "
    "low temperature (0.1), AdamW, more iterations"
)


class ScoreChange(NamedTuple):
    """A score before the first step and now. With several test sets the name of one follows the score's."""

    name: str
    before: float
    now: float
    score: Score

    @property
    def is_worse(self) -> bool:
        return bool(self.score.better) and is_better(self.score.name, self.before, self.now)

    def __str__(self) -> str:
        return f"{self.name} from {self.before:.2f} to {self.now:.2f} {self.score.unit}".rstrip()


class StartScores(HookBase):
    """Evaluates the network before the first step, and compares the scores of all later evaluations with these.

    A score below the start's is warned of. At half time and at the end one line says what became of each, so this
    belongs after what may end the run. A run that resumes compares with its first step, unless it evaluates otherwise.

    Args:
        evaluations: those that are on.
        period: iterations between evaluations.
    """

    def __init__(self, evaluations: Sequence[PretrainingEvaluation], period: int):
        self._scores = [score for evaluation in evaluations for score in evaluation.SCORES]
        self._options = {type(each).__name__: each.options(each.cfg) for each in evaluations if each.SCORES}
        self._period = period
        self._start: dict[str, float] = {}

    def state_dict(self) -> dict:
        return {"options": self._options, "start": self._start}

    def load_state_dict(self, state: dict) -> None:
        if state["options"] == self._options:
            self._start = state["start"]
        else:
            logger.info("the evaluation is another than at the first step: no score is compared")

    def before_train(self) -> None:
        if self.trainer.start_iter:
            return
        logger.info("evaluating the network as it is before the first step")
        self._start = self.trainer.test(self.trainer.cfg, self.trainer.model, self.trainer.evaluators)
        self.trainer.storage.put_scalars(smoothing_hint=False, **self._start)

    def after_step(self) -> None:
        if not self.trainer.is_evaluated:
            return
        changes = list(self._changes())
        worse = [change for change in changes if change.is_worse]
        for change in worse:
            why = "so far this run has made the network worse (docs/reading-a-run.md: Below the start)"
            logger.warning(f"{change}: {why}")
        if changes and self._is_summed_up():
            when = "training" if self.trainer.is_last_step else "half time: training"
            what = ", ".join(map(str, changes))
            logger.info(f"{when} has taken {what}" + (f". {WHAT_HELPS}" if worse else ""))

    def _changes(self) -> Iterator[ScoreChange]:
        """Of every score that was there at the start and is now."""
        for name, before in self._start.items():
            score = next((score for score in self._scores if f"{name}/".startswith(f"{score.name}/")), None)
            if score and name in self.trainer.results:
                yield ScoreChange(name, before, self.trainer.results[name], score)

    def _is_summed_up(self) -> bool:
        done = self.trainer.iter + 1
        return self.trainer.is_last_step or done - self._period < self.trainer.max_iter / 2 <= done
