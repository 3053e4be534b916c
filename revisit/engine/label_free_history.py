"""What only several evaluations tell without labels: how far they agree, and whether the network still changes."""

import logging

import numpy as np
from torch import Tensor

from revisit.data.loader import fingerprint
from revisit.engine.hooks import AfterEvaluation
from revisit.evaluation.features import extractor
from revisit.evaluation.label_free import (
    LabelFreeScores,
    nearest,
    neighbor_stability,
    rankme,
    watched_records,
    watched_rows,
)
from revisit.modeling.distributed import share_state, unwrap

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)


class LabelFreeResults(dict[str, float]):
    """Scores of an evaluation by name, and what the next evaluation is compared with."""

    label_free: LabelFreeScores | None = None


class LabelFreeHistory(AfterEvaluation):
    """Logs ``neighbor_stability`` from the second evaluation on, and once, when RankMe has flattened, advice.

    It has flattened when of the last FLAT evaluations the largest exceeds the smallest by at most TOLERANCE of it. A
    run that resumes from a checkpoint which an evaluation followed repeats that one, so that it goes on as if it had
    never stopped.
    """

    FLAT = 4  # evaluations
    TOLERANCE = 0.02

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        options = {"size": cfg.KNN_EVAL.IMAGE_SIZE, "neighbors": cfg.KNN_EVAL.NUM_NEIGHBORS}
        self._images = [*fingerprint(watched_records(cfg)), options]  # what evaluations share that are compared
        self._ranks: list[float] = []
        self._neighbors: Tensor | None = None  # of the last evaluation
        self._advised = False

    def state_dict(self) -> dict:
        state = {"images": self._images, "ranks": self._ranks, "neighbors": self._neighbors}
        return {**state, "advised": self._advised}

    def load_state_dict(self, state: dict) -> None:
        if state["images"] != self._images:
            logger.info("MONITOR.IMAGES are others than before: their evaluations are compared from here on")
            return
        self._ranks, self._neighbors, self._advised = list(state["ranks"]), state["neighbors"], state["advised"]

    def before_train(self) -> None:
        """Repeat the evaluation of the network that a run resumes from, where one was due."""
        done = self.trainer.start_iter
        if not (done and self._period and done % self._period == 0):
            return
        model = unwrap(self.trainer.model)
        share_state(model.backbone)
        rows = watched_rows(self._cfg, model, extractor(self._cfg, model))
        if rows is not None:
            self._remember(rankme(rows), nearest(rows, self._cfg.KNN_EVAL.NUM_NEIGHBORS))

    def _consider(self, results: LabelFreeResults, iteration: int) -> None:
        if (scores := results.label_free) is None:  # not the main process
            return
        if self._neighbors is not None:
            stability = neighbor_stability(self._neighbors, scores.neighbors)
            self.trainer.storage.put_scalar("neighbor_stability", stability, smoothing_hint=False)
            logger.info(f"{stability:.1f} % of the nearest neighbours are those of the evaluation before")
        self._remember(scores.rankme, scores.neighbors)

    def _remember(self, rank: float, neighbors: Tensor) -> None:
        self._neighbors = neighbors
        self._ranks.append(rank)
        last = np.array(self._ranks[-self.FLAT :])  # whose extremes are NaN where a value is
        if self._advised or len(last) < self.FLAT or not last.max() <= (1 + self.TOLERANCE) * last.min():
            return
        self._advised = True
        logger.info(
            f"RankMe has flattened: its last {self.FLAT} values, {last.min():.1f} to {last.max():.1f}, lie within "
            f"{self.TOLERANCE:.0%}. Finetune this network before you train on: more of the same may bring little "
            "(docs/reading-a-run.md)"
        )
