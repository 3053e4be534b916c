"""The evaluation while pretraining by a logistic regression on frozen features."""

import os
import sys

import numpy as np
import torch
from torch import Tensor

from revisit.evaluation.classifiers import BankEvaluation, Classifier
from revisit.evaluation.features import Features
from revisit.evaluation.registry import PRETRAINING_EVALUATION_REGISTRY, Score
from revisit.keys import SWITCH, declare

from detectron2.config import CfgNode

declare(
    "KNN_EVAL.LINEAR",
    False,
    "Fit a logistic regression to the bank too: linear_top1.",
    SWITCH,
    may_change=True,
    read_by="Pretraining",
)
REGULARIZATION = 0.1  # scikit-learn's C, on standardised features; the same for every run, tuned on none
MAX_ITERATIONS = 1000
ARRAYS = "SCIPY_ARRAY_API"


@PRETRAINING_EVALUATION_REGISTRY.register()
class LinearClassifier(BankEvaluation):
    """``linear_top1``, by ``fit_linear``."""

    SCORES = (Score("linear_top1"),)
    TITLE = "linear top-1"

    @classmethod
    def is_on(cls, cfg: CfgNode) -> bool:
        return super().is_on(cfg) and cfg.KNN_EVAL.LINEAR

    def classifier(self, bank: Features) -> Classifier:
        return fit_linear(bank)


def fit_linear(bank: Features) -> Classifier:
    """A logistic regression that L-BFGS has fitted to ``bank``, on its device: what gives rows, on any, their labels.

    No second copy of the features is made: while it is fitted they are standardised where they lie, and then put back,
    to within float32's rounding.
    """
    # scikit-learn computes on a GPU only where SCIPY_ARRAY_API was set before scipy was imported, as a training does.
    on_gpu = bank.rows.is_cuda and ("scipy" not in sys.modules or os.environ.get(ARRAYS) == "1")
    if on_gpu:
        os.environ[ARRAYS] = "1"
    else:
        bank = Features(*(tensor.cpu() for tensor in bank))
    # Seconds to import, which every process of every training would wait for.
    from sklearn import config_context
    from sklearn.linear_model import LogisticRegression

    def array(x: Tensor) -> Tensor | np.ndarray:
        return x if on_gpu else x.numpy()

    regression = LogisticRegression(C=REGULARIZATION, max_iter=MAX_ITERATIONS, random_state=0)
    std, mean = torch.std_mean(bank.rows, dim=0, correction=0)
    std[std <= 1e-6 * mean.abs()] = 1  # of what is the same in all images
    bank.rows.sub_(mean).div_(std)
    try:
        with config_context(array_api_dispatch=on_gpu):
            regression.fit(array(bank.rows), array(bank.labels))
    finally:
        bank.rows.mul_(std).add_(mean)

    def classify(rows: Tensor) -> Tensor:
        with config_context(array_api_dispatch=on_gpu):
            return torch.as_tensor(regression.predict(array((rows.to(mean.device) - mean) / std))).cpu()

    return classify
