"""Evaluations while pretraining by classifiers on frozen features; the first is a vote of nearest neighbours."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from revisit.data.sources.inspection import warn_of_shared
from revisit.data.sources.records import Records
from revisit.errors import expect
from revisit.evaluation.features import Features
from revisit.evaluation.nearest import highest
from revisit.evaluation.registry import PRETRAINING_EVALUATION_REGISTRY, PretrainingEvaluation, Score
from revisit.keys import COUNT, PIXELS, POSITIVE, Decision, Facts, declare

from detectron2.config import CfgNode

Classifier = Callable[[Tensor], Tensor]  # (N, Cg) rows to (N,) int64 labels, on the CPU
CHUNK = 1024  # rows that are worked on at a time

logger = logging.getLogger(__name__)


def bank(cfg: CfgNode, facts: Facts) -> Decision | None:
    """None where a training has no images to judge."""
    if facts.images is None or not cfg.KNN_EVAL.BANK or cfg.DATASETS.TEST:
        return None
    return Decision("", "nothing is evaluated: DATASETS.TEST is empty", level=logging.WARNING)


knn_eval = partial(declare, may_change=True, read_by="Pretraining")
knn_eval(
    "KNN_EVAL.BANK",
    "",
    "Labelled data set whose images vote on the class of those of DATASETS.TEST; '': none.",
    resolve=bank,
)
knn_eval("KNN_EVAL.NUM_NEIGHBORS", 20, "How many of the nearest images vote.", COUNT)
knn_eval("KNN_EVAL.TEMPERATURE", 0.07, "Votes weigh exp(cosine / temperature).", POSITIVE)
knn_eval("KNN_EVAL.IMAGE_SIZE", 224, "The short side is resized to 256/224 of it; the centre is cut.", PIXELS)


def knn_classify(bank: Features, rows: Tensor, *, k: int, temperature: float) -> Tensor:
    """Labels by a vote of the nearest neighbours (Wu et al., 2018): (N, Cg) unit rows to (N,) int64 on the CPU.

    Each of the k most similar images of the bank weighs exp(cosine / temperature). Computed on the bank's device.
    """
    rows = rows.to(bank.rows.device)
    similarity, neighbors = highest(rows @ bank.rows.T, k)
    votes = rows.new_zeros(len(rows), int(bank.labels.max()) + 1)
    # The softmax has the same order, and stays finite where exp(cosine / temperature) is beyond float32.
    votes.scatter_add_(1, bank.labels[neighbors], (similarity / temperature).softmax(dim=1))
    return votes.argmax(dim=1).cpu()


def hits(classifier: Classifier, test: Features) -> Tensor:
    """Whether the classifier gets each image of ``test`` right: (M,) bool."""
    predictions = torch.cat([classifier(chunk) for chunk in test.rows.split(CHUNK)])
    return predictions == test.labels


def top1(classifier: Classifier, test: Features) -> float:
    """Percent of ``test`` that the classifier gets right."""
    return percent(hits(classifier, test))


def percent(right: Tensor) -> float:
    """Percent of (M,) bool that are true."""
    return 100 * right.double().mean().item()


class BankEvaluation(PretrainingEvaluation):
    """Percent of DATASETS.TEST that a classifier made from KNN_EVAL.BANK gets right: one score for each data set.

    With several test sets the name of each follows the score's. ``hits``, by test set, are those of the last
    evaluation, on the main process.
    """

    TITLE: ClassVar[str]

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        self.hits: dict[str, Tensor] = {}

    @classmethod
    def is_on(cls, cfg: CfgNode) -> bool:
        return bool(cfg.KNN_EVAL.BANK and cfg.DATASETS.TEST)

    @classmethod
    def data_sets(cls, cfg: CfgNode) -> list[str]:
        return [*cfg.DATASETS.TEST, cfg.KNN_EVAL.BANK]

    @classmethod
    def options(cls, cfg: CfgNode) -> dict[str, object]:
        return {"test": list(cfg.DATASETS.TEST), **cfg.KNN_EVAL}

    def classifier(self, bank: Features) -> Classifier:
        raise NotImplementedError

    def evaluate(self, model: nn.Module, features_of: Callable[[str], Features | None]) -> dict[str, float]:
        name = self.cfg.KNN_EVAL.BANK
        bank = features_of(name)
        tests = {test: features_of(test) for test in self.cfg.DATASETS.TEST}
        if bank is None:
            return {}
        classifier = self.classifier(Features(*(column.to(self.cfg.MODEL.DEVICE) for column in bank)))
        scores = {}
        for test, features in tests.items():
            score = self.SCORES[0].name + (f"/{test}" if len(tests) > 1 else "")
            self.hits[test] = hits(classifier, features)
            scores[score] = percent(self.hits[test])
            logger.info(f"{self.TITLE} of {test}: {scores[score]:.2f} % (bank {name}, {len(bank.rows)} images)")
        return scores


@PRETRAINING_EVALUATION_REGISTRY.register()
class NearestNeighbors(BankEvaluation):
    """``knn_top1``, by ``knn_classify``."""

    SCORES = (Score("knn_top1"),)
    TITLE = "kNN top-1"

    @classmethod
    def check(cls, cfg: CfgNode, records: Mapping[str, Records]) -> None:
        bank = cfg.KNN_EVAL.BANK
        if bank in records:
            labels = _labels(records[bank])
            hint = "expected a labelled data set"
            expect(len(labels - {-1}) > 1, f"KNN_EVAL.BANK {bank} has fewer than two classes: {hint}")
            expect(-1 not in labels, f"KNN_EVAL.BANK {bank}: some of its images have no class to vote for: {hint}")
        for name in cfg.DATASETS.TEST:
            tested = records.get(name, [])
            hint = "expected a labelled data set; MONITOR.IMAGES takes one without labels"
            expect(
                -1 not in _labels(tested),
                f"DATASETS.TEST: images of {name} have no class to compare with that of KNN_EVAL.BANK: {hint}",
            )
            effect = "each finds itself there; expected other images"
            warn_of_shared(records.get(bank, []), f"KNN_EVAL.BANK {bank}", tested, name, effect)

    def classifier(self, bank: Features) -> Classifier:
        options = self.cfg.KNN_EVAL
        return partial(knn_classify, bank, k=options.NUM_NEIGHBORS, temperature=options.TEMPERATURE)


def _labels(records: Records) -> set[int]:
    """Of images; -1 of those that have none."""
    return {record.get("label", -1) for record in records}
