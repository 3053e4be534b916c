"""What only several evaluations tell without labels: how far they agree, and whether the network still changes."""

import logging

import numpy as np
from torch import Tensor

from revisit.data.records import fingerprint
from revisit.engine.hooks import AfterEvaluation
from revisit.evaluation.features import extractor
from revisit.evaluation.label_free import LabelFreeScores, label_free_scores, neighbor_stability, watched_records
from revisit.modeling.distributed import share_state, unwrap

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)


class LabelFreeResults(dict[str, float]):
    """Scores of an evaluation by name, and what the next evaluation is compared with."""

    label_free: LabelFreeScores | None = None


class LabelFreeHistory(AfterEvaluation):
    """Logs ``neighbor_stability`` from the second evaluation on, and once, when the curves have flattened, advice.

    They have when of the last FLAT values of RankMe the largest exceeds the smallest by at most TOLERANCE of it, and so
    with alignment and with uniformity less its sign. A run that resumes from a checkpoint which an evaluation followed
    repeats that one, so that it continues as if it had never stopped.
    """

    FLAT = 4  # evaluations
    TOLERANCE = 0.05

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        options = {"size": cfg.KNN_EVAL.IMAGE_SIZE, "neighbors": cfg.KNN_EVAL.NUM_NEIGHBORS}
        self._images = [*fingerprint(watched_records(cfg)), options]  # what evaluations share that are compared
        self._last: list[list[float]] = []  # at most FLAT evaluations: RankMe, alignment, uniformity
        self._neighbors: Tensor | None = None  # of the last one
        self._advised = False

    def state_dict(self) -> dict:
        state = {"images": self._images, "last": self._last, "neighbors": self._neighbors}
        return {**state, "advised": self._advised}

    def load_state_dict(self, state: dict) -> None:
        if state["images"] != self._images:
            logger.info("MONITOR.IMAGES are others than before: their evaluations are compared from here on")
            return
        self._last, self._neighbors, self._advised = state["last"], state["neighbors"], state["advised"]

    def before_train(self) -> None:
        """Repeat the evaluation of the network that a run resumes from, where one was due."""
        done = self.trainer.start_iter
        if not (done and self._period and done % self._period == 0):
            return
        model = unwrap(self.trainer.model)
        share_state(model.backbone)
        if scores := label_free_scores(self._cfg, model, extractor(self._cfg, model)):
            self._remember(scores)

    def _consider(self, results: LabelFreeResults, iteration: int) -> None:
        if (scores := results.label_free) is None:  # not the main process
            return
        if self._neighbors is not None:
            stability = neighbor_stability(self._neighbors, scores.neighbors)
            self.trainer.storage.put_scalar("neighbor_stability", stability, smoothing_hint=False)
            logger.info(f"{stability:.1f} % of the nearest neighbours are those of the evaluation before")
        self._remember(scores)

    def _remember(self, scores: LabelFreeScores) -> None:
        self._neighbors = scores.neighbors
        self._last = [*self._last, [scores.rankme, scores.alignment, scores.uniformity]][-self.FLAT :]
        sizes = np.abs(self._last)  # whose extremes are NaN where a value is
        flat = np.all(sizes.max(axis=0) <= (1 + self.TOLERANCE) * sizes.min(axis=0))
        if self._advised or len(sizes) < self.FLAT or not flat:
            return
        self._advised = True
        logger.info(
            f"the curves without labels have flattened: RankMe, alignment and uniformity of the last {self.FLAT} "
            f"evaluations each lie within {self.TOLERANCE:.0%}. Finetune this network before you train on "
            "(docs/reading-a-run.md)"
        )
