"""An evaluation while pretraining from outside the tree: how much the features of a class spread, SPREAD.IMAGES."""

from collections.abc import Callable

from torch import nn

from revisit.evaluation.features import Features
from revisit.evaluation.registry import PRETRAINING_EVALUATION_REGISTRY, PretrainingEvaluation, Score
from revisit.keys import declare

from detectron2.config import CfgNode

declare("SPREAD.IMAGES", "", "Labelled data set whose classes are judged; '': none.", may_change=True)


@PRETRAINING_EVALUATION_REGISTRY.register()
class ClassSpread(PretrainingEvaluation):
    """Mean squared distance of features to the mean of their class, as a share of that to the mean of all.

    1 where classes say nothing of features, 0 where all images of a class have the same.
    """

    SCORES = (Score("class_spread", better="lower", unit=""),)

    @classmethod
    def is_on(cls, cfg: CfgNode) -> bool:
        return cfg.SPREAD.IMAGES != ""

    @classmethod
    def data_sets(cls, cfg: CfgNode) -> list[str]:
        return [cfg.SPREAD.IMAGES]

    @classmethod
    def options(cls, cfg: CfgNode) -> dict[str, object]:
        return {"images": cfg.SPREAD.IMAGES, "size": cfg.KNN_EVAL.IMAGE_SIZE}

    def evaluate(self, model: nn.Module, features_of: Callable[[str], Features | None]) -> dict[str, float]:
        features = features_of(self.cfg.SPREAD.IMAGES)
        if features is None:  # not the main process
            return {}
        rows = features.rows.double()
        classes = [rows[features.labels == label] for label in features.labels.unique()]
        within = sum(((of_class - of_class.mean(dim=0)) ** 2).sum() for of_class in classes)
        return {"class_spread": (within / ((rows - rows.mean(dim=0)) ** 2).sum()).item()}
