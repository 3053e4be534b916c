"""A run's evaluations, and what follows them: the best network, what training changed, what several say together.

All of it happens before the checkpoint of the same step, which therefore holds it.
"""

import contextlib
import json
import logging
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from revisit.checkpoint.run_folder import BEST, BEST_RECORD, RESULTS, UNEVALUATED, read_iteration
from revisit.data.sources.records import changes
from revisit.engine.hooks import write_checkpoint
from revisit.errors import UserError
from revisit.evaluation.label_free import LABEL_FREE, LabelFreeScores, neighbor_stability
from revisit.evaluation.main_score import find_score, is_better, main_score, why_not_judged
from revisit.files import written_whole
from revisit.keys import SWITCH, Decision, Facts, declare, integer

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from detectron2.evaluation.testing import flatten_results_dict
from detectron2.utils import comm

logger = logging.getLogger(__name__)


def keep_best(cfg: CfgNode, facts: Facts) -> Decision | None:
    """False where no evaluation before the end has a main score."""
    test = cfg.TEST
    has_scores = main_score(cfg) and not why_not_judged(cfg) and (test.EVAL_PERIOD > 0 or test.EVAL_EPOCHS > 0)
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


class Evaluation(HookBase):
    """Scores the network every TEST.EVAL_PERIOD iterations and after the last one: ``trainer.results``, on the main
    process alone. Belongs after all that changes the network."""

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
            results = self.trainer.test(self.trainer.cfg, self.trainer.model)
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


class LabelFreeResults(dict[str, float]):
    """Scores of an evaluation by name, and what the next evaluation is compared with."""

    label_free: LabelFreeScores | None = None  # on the main process, with MONITOR.IMAGES


class LabelFreeHistory(HookBase):
    """Logs ``neighbor_stability`` from the second evaluation on, and once, when the curves have flattened, advice: when
    of the last FLAT sizes of RankMe, alignment and uniformity the largest exceeds the smallest by at most TOLERANCE.

    Args:
        images: ``fingerprint`` of MONITOR.IMAGES.
        options: how features are seen and compared.
    """

    FLAT = 4  # evaluations
    TOLERANCE = 0.05

    def __init__(self, images: list[dict], options: dict[str, int]):
        self._images, self._options = images, options
        self._last: list[list[float]] = []  # at most FLAT evaluations: RankMe, alignment, uniformity
        self._neighbors: Tensor | None = None  # of the last one
        self._advised = False

    def state_dict(self) -> dict:
        state = {"images": self._images, "options": self._options, "last": self._last, "neighbors": self._neighbors}
        return {**state, "advised": self._advised}

    def load_state_dict(self, state: dict) -> None:
        if changes(state["images"], self._images, times=False) or state["options"] != self._options:
            logger.info("MONITOR.IMAGES are others than before: their evaluations are compared from here on")
            return
        self._last, self._neighbors, self._advised = state["last"], state["neighbors"], state["advised"]

    def after_step(self) -> None:
        if not self.trainer.is_evaluated or not (scores := self.trainer.results.label_free):
            return
        if self._neighbors is not None:
            stability = neighbor_stability(self._neighbors, scores.neighbors)
            self.trainer.storage.put_scalar("neighbor_stability", stability, smoothing_hint=False)
            logger.info(f"{stability:.1f} % of the nearest neighbours are those of the evaluation before")
        self._neighbors = scores.neighbors
        self._last = [*self._last, [scores.rankme, scores.alignment, scores.uniformity]][-self.FLAT :]
        sizes = np.abs(self._last)  # whose extremes are NaN where a value is
        flat = np.all(sizes.max(axis=0) <= (1 + self.TOLERANCE) * sizes.min(axis=0))
        if self._advised or len(sizes) < self.FLAT or not flat:
            return
        self._advised = True
        flattened = f"the curves without labels have flattened: the last {self.FLAT} lie within {self.TOLERANCE:.0%}"
        logger.info(f"{flattened}. Finetune this network before you train on (docs/reading-a-run.md)")


@dataclass(frozen=True)
class Best:
    """The best evaluation so far, as best.json has it; iterations count from 0, as in the names of checkpoints."""

    score: str
    value: float
    iteration: int
    waited: int = 0  # evaluations since then without a better one


class BestCheckpoint(HookBase):
    """Writes model_best.pth, then best.json, after an evaluation that is better than all before (TEST.KEEP_BEST), and
    ends the run after TEST.PATIENCE evaluations in a row that are not."""

    def __init__(self, folder: Path, patience: int):
        self._folder, self._patience = folder, patience
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
        cfg, value = self.trainer.cfg, None
        score = main_score(cfg)
        if comm.is_main_process():
            value = find_score(cfg, flatten_results_dict(self.trainer.results))
        value = comm.all_gather(value)[0]
        if self._best and not is_better(score, value, self._best.value):
            self._best = replace(self._best, waited=self._best.waited + 1)
        else:
            before, self._best = self._best, Best(score, value, self.trainer.iter)
            if failure := write_checkpoint(self.trainer, self._folder, BEST, best=asdict(self._best)):
                self._best = before
                logger.error(f"NO BEST CHECKPOINT: {failure}. The run continues; a better evaluation tries again")
                return
            logger.info(f"{score} {value:.2f} is the best so far: {BEST}.pth is of iteration {self.trainer.iter}")
        if comm.is_main_process():
            with contextlib.suppress(OSError), written_whole(self._folder / BEST_RECORD) as temporary:
                temporary.write_text(json.dumps(asdict(self._best), indent=2))
        if self.trainer.iter + 1 < self.trainer.max_iter:
            self.trainer.ending = self._why_it_ends()

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
COMPARED = ("knn_top1", "linear_top1")  # percent, the higher the better, of one test set or, with a suffix, several


class StartScores(HookBase):
    """Evaluates the network before the first step, whose scores are iteration 0's, and compares all others with that.

    A score below the start's is warned of; half time and the end say what became of each, so it belongs after what may
    end the run. A run that resumes compares with its first step, unless it evaluates in another way.

    Args:
        how: the options of an evaluation, plain values by name.
        period: iterations between evaluations.
    """

    def __init__(self, how: dict[str, object], period: int):
        self._how, self._period = how, period
        self._start: dict[str, float] = {}

    def state_dict(self) -> dict:
        return {"how": self._how, "start": self._start}

    def load_state_dict(self, state: dict) -> None:
        if state["how"] == self._how:
            self._start = state["start"]
        else:
            logger.info("DATASETS.TEST, KNN_EVAL or MONITOR is another than at the first step: no score is compared")

    def before_train(self) -> None:
        if self.trainer.start_iter:
            return
        logger.info("evaluating the network as it is before the first step")
        results = self.trainer.test(self.trainer.cfg, self.trainer.model)
        self.trainer.storage.put_scalars(smoothing_hint=False, **results)
        compared = (*COMPARED, *LABEL_FREE)
        self._start = {name: value for name, value in results.items() if name.split("/")[0] in compared}

    def after_step(self) -> None:
        if not self.trainer.is_evaluated:
            return
        results = self.trainer.results
        pairs = {name: (before, results[name]) for name, before in self._start.items() if name in results}
        below = [name for name, pair in pairs.items() if name not in LABEL_FREE and is_better(name, *pair)]
        for name in below:
            before, now = pairs[name]
            what = f"{name} is {now:.2f} %, below the {before:.2f} % from before the first step: so far this run has"
            logger.warning(f"{what} made the network worse (docs/reading-a-run.md: Below the start)")
        units = {name: "" if name in LABEL_FREE else " %" for name in pairs}
        changes = [f"{name} from {before:.2f} to {now:.2f}{units[name]}" for name, (before, now) in pairs.items()]
        done, half = self.trainer.iter + 1, self.trainer.max_iter / 2
        if changes and (self.trainer.is_last_step or done - self._period < half <= done):
            when = "training" if self.trainer.is_last_step else "half time: training"
            logger.info(f"{when} has taken {', '.join(changes)}" + (f". {WHAT_HELPS}" if below else ""))
