"""Classifiers on frozen features: a weighted vote of nearest neighbours (Wu et al., 2018), and a linear one."""

import logging
import os
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from revisit.evaluation.features import Features
from revisit.keys import COUNT, PIXELS, POSITIVE, SWITCH, Decision, Facts, declare

from detectron2.config import CfgNode

Classifier = Callable[[Tensor], Tensor]  # (N, Cg) rows to (N,) int64 labels, on the CPU
REGULARIZATION = 0.1  # scikit-learn's C, on standardised features; the same for every run, tuned on none
MAX_ITERATIONS = 1000
ARRAYS = "SCIPY_ARRAY_API"
CHUNK = 1024  # rows that are worked on at a time


def bank(cfg: CfgNode, facts: Facts) -> Decision | None:
    """None where a training has no images to judge."""
    if facts.images is None or not cfg.KNN_EVAL.BANK or cfg.DATASETS.TEST:
        return None
    return Decision("", "nothing is evaluated: DATASETS.TEST is empty", level=logging.WARNING)


knn_eval = partial(declare, may_change=True, read_by="Pretraining")
voters = "Labelled data set whose images vote on the class of those of DATASETS.TEST; '': none."
knn_eval("KNN_EVAL.BANK", "", voters, resolve=bank)
knn_eval("KNN_EVAL.NUM_NEIGHBORS", 20, "How many of the nearest images vote.", COUNT)
knn_eval("KNN_EVAL.TEMPERATURE", 0.07, "Votes weigh exp(cosine / temperature).", POSITIVE)
knn_eval("KNN_EVAL.IMAGE_SIZE", 224, "The short side is resized to 256/224 of it; the centre is cut.", PIXELS)
knn_eval("KNN_EVAL.LINEAR", False, "Fit a logistic regression to the bank too: linear_top1.", SWITCH)


def knn_classify(bank: Features, rows: Tensor, *, k: int, temperature: float) -> Tensor:
    """(N,) int64 labels, on the CPU, of (N, Cg) unit rows on any device, by a vote of the k most similar images of the
    labelled bank, on its device, each weighing exp(cosine / temperature)."""
    rows = rows.to(bank.rows.device)
    similarity, neighbors = (rows @ bank.rows.T).topk(min(k, len(bank.rows)), dim=1)
    votes = rows.new_zeros(len(rows), int(bank.labels.max()) + 1)
    # The softmax has the same order, and stays finite where exp(cosine / temperature) is beyond float32.
    votes.scatter_add_(1, bank.labels[neighbors], (similarity / temperature).softmax(dim=1))
    return votes.argmax(dim=1).cpu()


def fit_linear(bank: Features) -> Classifier:
    """A logistic regression that L-BFGS has fitted to ``bank``, on its device: what gives rows, on any, their labels.

    No second copy of the features is made: while it is fitted they are standardised where they lie, and then put back,
    to within float32's rounding.
    """
    # scikit-learn computes on a GPU where scipy was told so before it was imported, as it is in a training.
    on_gpu = bank.rows.is_cuda and ("scipy" not in sys.modules or os.environ.get(ARRAYS) == "1")
    if on_gpu:
        os.environ[ARRAYS] = "1"
    else:
        bank = Features(*(each.cpu() for each in bank))
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


def top1(classifier: Classifier, test: Features) -> float:
    """Percent of ``test`` that the classifier gets right."""
    predictions = torch.cat([classifier(chunk) for chunk in test.rows.split(CHUNK)])
    return 100 * (predictions == test.labels).double().mean().item()
