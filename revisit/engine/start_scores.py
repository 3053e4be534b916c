"""What the network scored before its first step, and a word as long as training has made it worse."""

import logging

from revisit.engine.hooks import AfterEvaluation
from revisit.evaluation.label_free import LABEL_FREE
from revisit.evaluation.main_score import is_better

from detectron2.config import CfgNode
from detectron2.utils import comm

logger = logging.getLogger(__name__)

COMPARED = ("knn_top1", "linear_top1")  # percent, the higher the better, of one test set or, with a suffix, several


class StartScores(AfterEvaluation):
    """Evaluates the network before the first step, whose scores are iteration 0's, and compares all others with that.

    A score below the start's is warned of; the end says what became of each. The scores are in the checkpoints: a run
    that resumes compares with those of its first step, unless it evaluates in another way.
    """

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        self._how = {"test": list(cfg.DATASETS.TEST), **cfg.KNN_EVAL}
        self._monitored = {**cfg.MONITOR}
        self._start: dict[str, float] = {}
        self._changes = ""

    def state_dict(self) -> dict:
        return {"how": self._how, "monitored": self._monitored, "start": self._start}

    def load_state_dict(self, state: dict) -> None:
        if state["how"] == self._how:
            self._start = state["start"]
        else:
            logger.info("DATASETS.TEST or KNN_EVAL is another than at the first step: no score is compared with that")
        if state.get("monitored") != self._monitored:
            self._start = {name: value for name, value in self._start.items() if name not in LABEL_FREE}

    def before_train(self) -> None:
        if self.trainer.start_iter:
            return
        logger.info("evaluating the network as it is before the first step")
        results = self.trainer.test(self._cfg, self.trainer.model)
        if comm.is_main_process():
            self.trainer.storage.put_scalars(smoothing_hint=False, **results)
            kept = (*COMPARED, *LABEL_FREE)
            self._start = {name: value for name, value in results.items() if name.split("/")[0] in kept}

    def _consider(self, results: dict, iteration: int) -> None:
        pairs = {name: (before, results[name]) for name, before in self._start.items() if name in results}
        for name, (before, now) in pairs.items():
            if name not in LABEL_FREE and is_better(name, before, now):
                logger.warning(
                    f"{name} is {now:.2f} %, below the {before:.2f} % from before the first step: so far this run has "
                    "made the network worse (docs/reading-a-run.md: Below the start)"
                )
        units = {name: "" if name in LABEL_FREE else " %" for name in pairs}
        changes = (f"{name} from {before:.2f} to {now:.2f}{units[name]}" for name, (before, now) in pairs.items())
        self._changes = ", ".join(changes)
        if iteration == self.trainer.max_iter - 1:
            self.sum_up()

    def sum_up(self) -> None:
        """At the end of a run: say what it has changed, by its last evaluation."""
        if self._changes:
            logger.info(f"training has taken {self._changes}")
