"""Classifiers on frozen features: a weighted vote of nearest neighbours (Wu et al., 2018), and a linear one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from revisit.evaluation.features import Features
from revisit.keys import COUNT, PIXELS, POSITIVE, SWITCH, declare

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

Classifier = Callable[[Tensor], Tensor]  # (N, Cg) rows to (N,) int64 labels, on the CPU
REGULARIZATION = 0.1  # scikit-learn's C, on standardised features; the same for every run, tuned on none
MAX_ITERATIONS = 1000
ARRAYS = "SCIPY_ARRAY_API"
CHUNK = 1024  # rows that are worked on at a time


knn_eval = partial(declare, may_change=True, read_by="Pretraining")
knn_eval(
    "KNN_EVAL.BANK",
    "",
    "Labelled data set whose images vote on the class of those of DATASETS.TEST, by the frozen backbone's features; '' "
    "switches the monitor off. When: TEST.EVAL_PERIOD or TEST.EVAL_EPOCHS.",
)
knn_eval("KNN_EVAL.NUM_NEIGHBORS", 20, "How many of the nearest images vote.", COUNT)
knn_eval("KNN_EVAL.TEMPERATURE", 0.07, "Votes weigh exp(cosine / temperature).", POSITIVE)
knn_eval(
    "KNN_EVAL.IMAGE_SIZE", 224, "px: the short side is resized to 256/224 of it, then the centre is cut out.", PIXELS
)
knn_eval("KNN_EVAL.LINEAR", False, "Fit a logistic regression to the bank too: linear_top1.", SWITCH)


def knn_classify(bank: Features, rows: Tensor, *, k: int, temperature: float) -> Tensor:
    """Classify by a vote of the k most similar images of the bank, each weighing exp(cosine / temperature).

    Args:
        bank: labelled features, M rows, on the device that is to compute.
        rows: (N, Cg) unit rows to classify, on any.
        k: voters, at most M (more means all).
        temperature: > 0.

    Returns:
        (N,) int64 labels, on the CPU.
    """
    num_classes = int(bank.labels.max()) + 1
    predictions = []
    for chunk in rows.split(CHUNK):
        chunk = chunk.to(bank.rows.device)
        similarity, neighbors = (chunk @ bank.rows.T).topk(min(k, len(bank.rows)), dim=1)
        votes = chunk.new_zeros(len(chunk), num_classes)
        # The softmax has the same order, and stays finite where exp(cosine / temperature) is beyond float32.
        votes.scatter_add_(1, bank.labels[neighbors], (similarity / temperature).softmax(dim=1))
        predictions.append(votes.argmax(dim=1).cpu())
    return torch.cat(predictions)


def knn_top1(bank: Features, test: Features, *, k: int, temperature: float) -> float:
    """Percent of ``test`` whose label the vote of ``bank`` finds."""
    predictions = knn_classify(bank, test.rows, k=k, temperature=temperature)
    return 100 * (predictions == test.labels).float().mean().item()


def fit_linear(bank: Features) -> Classifier:
    """A logistic regression that L-BFGS has fitted to ``bank``, on its device: what gives rows, on any, their labels.

    On the CPU no second copy of the features is made: while it is fitted they are standardised where they lie, and
    then put back, to within float32's rounding.
    """
    # scikit-learn computes on tensors where scipy was told so before it was imported, as it is in a training: below.
    on_cpu = bank.rows.device.type == "cpu" or ("scipy" in sys.modules and os.environ.get(ARRAYS) != "1")
    if on_cpu:
        bank = Features(*(each.cpu() for each in bank))
    else:
        os.environ[ARRAYS] = "1"
    # Seconds to import, which every process of every training would wait for.
    from sklearn import config_context
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler(copy=not on_cpu)
    regression = LogisticRegression(C=REGULARIZATION, max_iter=MAX_ITERATIONS, random_state=0)
    if not on_cpu:
        with config_context(array_api_dispatch=True):
            regression.fit(scaler.fit_transform(bank.rows), bank.labels)
        return partial(_classify_on_device, scaler, regression, bank.rows.device)
    chunks = [chunk.numpy() for chunk in bank.rows.split(CHUNK)]
    for chunk in chunks:
        scaler.partial_fit(chunk)
    for chunk in chunks:
        scaler.transform(chunk)
    try:
        regression.fit(bank.rows.numpy(), bank.labels.numpy())
    finally:
        for chunk in chunks:
            scaler.inverse_transform(chunk)
    return lambda rows: torch.from_numpy(regression.predict(scaler.transform(rows.numpy().copy())))


def _classify_on_device(
    scaler: StandardScaler, regression: LogisticRegression, device: torch.device, rows: Tensor
) -> Tensor:
    from sklearn import config_context

    with config_context(array_api_dispatch=True):
        return regression.predict(scaler.transform(rows.to(device))).cpu()


def linear_top1(classifier: Classifier, test: Features) -> float:
    """Percent of ``test`` that the classifier gets right."""
    predictions = torch.cat([classifier(chunk) for chunk in test.rows.split(CHUNK)])
    return 100 * (predictions == test.labels).double().mean().item()
