"""OUTPUT_DIR/model_best.pth: the network of the evaluation with the best score so far (TEST.KEEP_BEST), and the end of
a run that finds no better one (TEST.PATIENCE)."""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from revisit.checkpoint.run_folder import BEST, BEST_RECORD, FINAL
from revisit.engine.hooks import AfterEvaluation, write_checkpoint
from revisit.errors import UserError, expect
from revisit.evaluation.main_score import find_score, is_better, main_score
from revisit.files import written_whole
from revisit.keys import SWITCH, declare, whole

from detectron2.config import CfgNode
from detectron2.evaluation.testing import flatten_results_dict
from detectron2.utils import comm
from detectron2.utils.events import EventStorage

logger = logging.getLogger(__name__)


declare(
    "TEST.KEEP_BEST",
    False,
    "Keep model_best.pth: the network of the evaluation whose main score, of the first of DATASETS.TEST, is the best: "
    "bbox/AP, sem_seg/mIoU, depth/rmse (the lowest), knn_top1 (which needs KNN_EVAL.BANK). best.json says which.",
    SWITCH,
    may_change=True,
)
declare(
    "TEST.PATIENCE",
    0,
    "End a run after so many evaluations in a row without a better one, which KEEP_BEST keeps; 0: never.",
    whole(unit="evaluations (0: never)"),
    may_change=True,
)


@dataclass(frozen=True)
class Best:
    """What best.json says; iterations count from 0, as in the names of checkpoints."""

    score: str
    value: float
    iteration: int
    last_evaluated: int
    waited: int = 0  # evaluations since then without a better one

    def write(self, folder: Path) -> None:
        with written_whole(folder / BEST_RECORD) as temporary:
            temporary.write_text(json.dumps(asdict(self), indent=2))


def read_best(folder: Path) -> Best | None:
    """None where no evaluation has been recorded.

    Raises:
        UserError: a damaged record, or one whose checkpoint is gone.
    """
    path = folder / BEST_RECORD
    if not path.is_file():
        return None
    remedy = f"restore it, or remove {path} to choose among the evaluations from here on"
    try:
        best = Best(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is no record of a best checkpoint: {remedy}") from error
    expect(
        (folder / f"{BEST}.pth").is_file(),
        f"{folder / BEST}.pth is missing, which {path} has as the best ({best.score} {best.value:.2f}): {remedy}",
    )
    return best


class OutOfPatienceError(UserError):
    """TEST.PATIENCE evaluations found no better score: how a run ends, and no failure."""


class BestCheckpoint(AfterEvaluation):
    """Writes model_best.pth, then best.json, after each evaluation that is better than all before.

    After TEST.PATIENCE evaluations in a row without a better one it writes model_final.pth and ends the run. A run that
    was killed between a checkpoint and the end of the evaluation that follows it makes up for that evaluation when it
    resumes, so that choice and end are the same.
    """

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        self._folder, self._patience = Path(cfg.OUTPUT_DIR), cfg.TEST.PATIENCE
        self._best: Best | None = None

    def before_train(self) -> None:
        self.catch_up()

    def catch_up(self) -> None:
        """Evaluate the network that a run resumes from, where that was due and is not on record."""
        done = self.trainer.start_iter
        if done == 0:
            return
        self._best = comm.all_gather(read_best(self._folder) if comm.is_main_process() else None)[0]
        if done < self.trainer.max_iter and (why := self.why_it_ended(self._best)):
            raise OutOfPatienceError(f"nothing to do: {why}; a larger TEST.PATIENCE, or 0, continues")
        due = done % self._period == 0 or done >= self.trainer.max_iter
        if due and (self._best is None or self._best.last_evaluated < done - 1):
            self.trainer.iter = done - 1
            with EventStorage(done - 1):
                self.trainer._last_eval_results = self.trainer.test(self._cfg, self.trainer.model)
                self._consider(self.trainer._last_eval_results, done - 1)

    def why_it_ended(self, best: Best | None) -> str:
        """Why a run whose best evaluation is ``best`` trains no longer, in words; "" if it has patience left."""
        if not best or not self._patience or best.waited < self._patience:
            return ""
        found = f"no better {best.score} than {best.value:.2f} in {best.waited} evaluations"
        return f"{found}: {BEST}.pth, of iteration {best.iteration}, is the result (TEST.PATIENCE {self._patience})"

    def _consider(self, results: dict, iteration: int) -> None:
        """Compare an evaluation, whose results the main process has, with the best one."""
        score, value = main_score(self._cfg), None
        if comm.is_main_process():
            value = find_score(self._cfg, flatten_results_dict(results))
        value = comm.all_gather(value)[0]
        best = self._best
        if best is None or is_better(score, value, best.value):
            best = Best(score, value, iteration, iteration)
            if failure := write_checkpoint(self.trainer, self._folder, BEST, iteration, best=asdict(best)):
                logger.error(f"NO BEST CHECKPOINT: {failure}. The run continues; a better evaluation tries again")
                return
            logger.info(f"{score} {value:.2f} is the best so far: {BEST}.pth is of iteration {iteration}")
        is_new = self._best is None or iteration > self._best.last_evaluated  # and not repeated by a resumed run
        waited = 0 if best.iteration == iteration else best.waited + is_new
        self._best = Best(best.score, best.value, best.iteration, iteration, waited)
        if comm.is_main_process():
            self._best.write(self._folder)
        why = self.why_it_ended(self._best)
        if why and iteration + 1 < self.trainer.max_iter:
            failure = write_checkpoint(self.trainer, self._folder, FINAL, iteration)
            expect(not failure, f"{failure}; free some space and resume with --resume")
            raise OutOfPatienceError(why)
