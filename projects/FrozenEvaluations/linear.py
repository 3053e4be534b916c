#!/usr/bin/env python
"""Classify images by frozen features: logistic regression, SVM, nearest neighbours, or a layer trained by SGD.

    python projects/FrozenEvaluations/linear.py \\
        --config-file projects/FrozenEvaluations/configs/linear/cifar10.yaml \\
        --weights backbone.pth --output output/linear/cifar10

Trains on DATASETS.TRAIN and scores DATASETS.TEST; LINEAR.METHOD says how. Features are computed once and kept in
DIR/features; a second call with the same weights, images and transform reads them. DIR/results.json has the score,
DIR/classifier.pth the weights of a linear classifier, which cams.py draws.
"""

if __name__ == "__main__":  # before the imports below, which take seconds
    from revisit.command.evaluation_options import run_project

    run_project("FrozenEvaluations.linear", __doc__)

import logging
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from torch.nn import functional as F

from projects.FrozenEvaluations.labelled_sets import (
    Labelled,
    LabelledSet,
    cached_features,
    check_classes,
    of_length_one,
    read_set,
    transform_of,
)
from projects.FrozenEvaluations.sgd import LinearTraining, plot_history
from projects.Pictures.curves import saved_plot
from revisit.command.evaluation_config import only_dataset, write_results
from revisit.data.sources.catalog import get_records, share_classes
from revisit.data.sources.inspection import warn_of_shared
from revisit.data.sources.records import DIFFICULT, PRESENT
from revisit.data.sources.rows import joined
from revisit.engine.data_checks import look_at_images
from revisit.errors import expect
from revisit.evaluation.classifiers import knn_classify, top1
from revisit.evaluation.features import TRANSFORMS, Features
from revisit.files import written_whole
from revisit.keys import PIXELS, POSITIVE, SWITCH, Facts, declare, integer, list_of, number, one_of, resolve_auto_values
from revisit.network.network import Network
from revisit.progress import progress

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

logger = logging.getLogger("projects.FrozenEvaluations")


def main(cfg: CfgNode) -> None:
    low, high, count = cfg.LINEAR.LAMBDAS
    counts = count >= 1 and count == int(count)
    expect(low <= high and counts, f"LINEAR.LAMBDAS {cfg.LINEAR.LAMBDAS}: expected 0 < lowest <= highest, and how many")
    method = cfg.LINEAR.METHOD
    epochs = cfg.SOLVER.EPOCHS
    expect(method != "sgd" or epochs > 0, f"SOLVER.EPOCHS is {epochs}: LINEAR.METHOD sgd expects at least 1")
    names = [only_dataset(cfg, split) for split in ("TRAIN", "TEST")]
    share_classes(names[0], filter(None, (names[1], cfg.LINEAR.VALIDATION)))
    train, test = (read_set(cfg, name) for name in names)
    check_classes(
        train.targets,
        test.targets,
        (train.name, test.name),
        difficult_is_absent=cfg.LINEAR.DIFFICULT_IS_ABSENT,
    )
    effect = "their score says nothing of new images; expected others"
    for name in filter(None, (train.name, cfg.LINEAR.VALIDATION)):
        warn_of_shared(get_records(name), name, test.records, test.name, effect)
    resolve_auto_values(cfg, Facts(records=joined([train.records, test.records])))
    for data in (train, test):
        look_at_images(cfg, data.name, data.records, to_learn=False)
    if train.targets.ndim > 1:
        how_many = "several classes"
        suited = ("logistic", "svm")
    else:
        how_many = "one class each"
        suited = ("logistic", "knn", "sgd")
    expect(method in suited, f"LINEAR.METHOD {method}, but images show {how_many}: expected one of {', '.join(suited)}")
    backbone = Network.of_config(cfg)
    results = METHODS[method](cfg, backbone, train, test)
    how = protocol(cfg, backbone.last)
    write_results(cfg, how, results)
    score = "mAP" if "mAP" in results else "top1"
    print(f"{score} of {test.name}: {results[score]:.2f} % ({how})")


def protocol(cfg: CfgNode, map_name: str) -> str:
    """What the score means, in words."""
    options = cfg.LINEAR
    knn = cfg.KNN_EVAL
    if options.METHOD == "sgd":
        return (
            f"linear classifier, SGD for {cfg.SOLVER.EPOCHS} epochs on random crops of {options.IMAGE_SIZE} px, "
            "scored on central ones"
        )
    low, high, count = options.LAMBDAS
    chosen = options.VALIDATION or f"{options.VALIDATION_SHARE:g} of the training images"
    how = {
        "logistic": f"logistic regression, {int(count)} lambdas from {low:g} to {high:g} chosen on {chosen}",
        "svm": f"linear SVM, C {options.COST:g}, area under the interpolated precision",
        "knn": f"{knn.NUM_NEIGHBORS} nearest neighbours, temperature {knn.TEMPERATURE:g}",
    }[options.METHOD]
    shape = {"square": "whole images", "center_crop": "central crops"}[options.TRANSFORM]
    left_out = "" if options.DIFFICULT_IS_ABSENT else "; images of difficult objects alone left out"
    return f"{how}; pooled {map_name} of {shape} at {options.IMAGE_SIZE} px{left_out}"


def logistic(cfg: CfgNode, backbone: Network, train: LabelledSet, test: LabelledSet) -> dict:
    """Choose lambda on validation images, fit all labelled ones again, score the test images."""
    options = cfg.LINEAR
    validation = read_set(cfg, options.VALIDATION) if options.VALIDATION else None
    rows, targets = cached_features(cfg, backbone, train)
    difficult = {"difficult_is_absent": options.DIFFICULT_IS_ABSENT}
    if validation:
        check_classes(targets, validation.targets, (train.name, validation.name), **difficult)
        warn_of_shared(
            train.records,
            train.name,
            validation.records,
            validation.name,
            "lambda is chosen on what is learned from; expected others",
        )
        fitted = (rows, targets)
        held = cached_features(cfg, backbone, validation)
    else:
        kept, out = split_off(targets, options.VALIDATION_SHARE, cfg.SEED)
        check_classes(
            targets[kept],
            targets[out],
            (f"{1 - options.VALIDATION_SHARE:g} of {train.name}", f"the other {options.VALIDATION_SHARE:g}"),
            **difficult,
        )
        fitted = (rows[kept], targets[kept])
        held = (rows[out], targets[out])
    path = fit_path(fitted, held, options)
    best = max(path, key=lambda point: point.score)  # of equals the first, which has the strongest regularisation
    all_rows, all_targets = (np.concatenate(parts) for parts in zip(fitted, held, strict=True))
    final = Classifier(options)
    iterations, converged = final.fit(all_rows, all_targets, best.strength)
    if not converged:
        logger.warning(f"the final fit did not converge in {iterations} iterations: raise LINEAR.MAX_ITER")
    score = "top1" if targets.ndim == 1 else "mAP"
    plot_path(path, score, Path(cfg.OUTPUT_DIR) / "path.png")
    save_classifier(cfg, *final.weights(), final.labels())
    tested = cached_features(cfg, backbone, test)
    return {
        score: round(final.score(*tested), 2),
        "lambda": best.strength,
        "validation": round(best.score, 2),
        "iterations": iterations,
        "converged": converged,
        "path": [point._asdict() for point in path],
    }


class PathPoint(NamedTuple):
    """One lambda of the path."""

    strength: float  # lambda
    score: float  # percent, on the validation images
    iterations: int  # of L-BFGS, the most of all classifiers
    converged: bool


class Classifier:
    """Multinomial logistic regression, or one of two classes for each column of several labels.

    ``fit`` starts from the coefficients of the call before, for MAX_ITER iterations of L-BFGS at most.
    """

    def __init__(self, options: CfgNode):
        self._max_iter = options.MAX_ITER
        self._difficult_is_absent = options.DIFFICULT_IS_ABSENT
        self._models: list[LogisticRegression] = []
        self._several = False

    def fit(self, rows: np.ndarray, targets: np.ndarray, strength: float) -> tuple[int, bool]:
        """Fit to (N, C) features; how many iterations it took, and whether it converged."""
        self._several = targets.ndim > 1
        problems = list(columns(rows, targets, self._difficult_is_absent)) if self._several else [(rows, targets)]
        if not self._models:
            self._models = [LogisticRegression(max_iter=self._max_iter, warm_start=True) for _ in problems]
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", ConvergenceWarning)  # reported once for the whole path
            for model, problem in zip(self._models, problems, strict=True):
                model.set_params(C=1 / strength).fit(*problem)
        failed = any(issubclass(warning.category, ConvergenceWarning) for warning in raised)
        return max(int(model.n_iter_.max()) for model in self._models), not failed

    def score(self, rows: np.ndarray, targets: np.ndarray) -> float:
        """Percent: top-1, or the mean of the classes' 11-point AP."""
        if targets.ndim == 1:
            (model,) = self._models
            is_right = model.predict(rows) == targets
            return 100 * float(np.mean(is_right))
        scores = []
        of_classes = columns(rows, targets, self._difficult_is_absent)
        for model, (counted, present) in zip(self._models, of_classes, strict=True):
            margins = model.decision_function(counted)
            scores.append(eleven_point_ap(margins, present))
        return float(np.mean(scores))

    def labels(self) -> list[int]:
        """The class of each row of ``weights``: without those that no image of ``fit`` shows."""
        return list(range(len(self._models))) if self._several else self._models[0].classes_.tolist()

    def weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight (classes, C) and bias (classes,)."""
        weight, bias = stacked_weights(self._models)
        if not self._several and len(weight) == 1:  # two classes: scikit-learn has the second against the first
            weight, bias = (np.concatenate([-part / 2, part / 2]) for part in (weight, bias))
        return torch.from_numpy(weight), torch.from_numpy(bias)


def stacked_weights(models: list[LogisticRegression] | list[LinearSVC]) -> tuple[np.ndarray, np.ndarray]:
    """Weight (classes, C) and bias (classes,) of fitted models, one after the other."""
    weight = np.concatenate([model.coef_ for model in models])
    bias = np.concatenate([model.intercept_ for model in models])
    return weight, bias


def fit_path(train: Labelled, validation: Labelled, options: CfgNode) -> list[PathPoint]:
    """Fit ``train`` for each of LINEAR.LAMBDAS, the strongest and easiest first, and score ``validation``."""
    (low, high, count), classifier, path = options.LAMBDAS, Classifier(options), []
    strengths = np.logspace(np.log10(high), np.log10(low), int(count))
    for strength in progress("logistic regression", "lambda", strengths.tolist()):
        iterations, converged = classifier.fit(*train, strength)
        path.append(PathPoint(strength, classifier.score(*validation), iterations, converged))
    if lost := [f"{point.strength:.1e}" for point in path if not point.converged]:
        logger.warning(
            f"{len(lost)} of {len(path)} fits did not converge: lambda {', '.join(lost)}; raise LINEAR.MAX_ITER"
        )
    return path


def split_off(targets: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of (training, validation): a seeded ``share`` of the images, of each class where it has two or more.
    Raises UserError where none has."""
    rng = np.random.default_rng(seed)
    if targets.ndim > 1:
        order = rng.permutation(len(targets))
        held = order[: round(share * len(order))]
    else:
        of_classes = []
        for label in np.unique(targets):
            members = rng.permutation(np.flatnonzero(targets == label))
            at_least_one = max(round(share * len(members)), 1)
            count = min(at_least_one, len(members) - 1)
            of_classes.append(members[:count])
        held = np.concatenate(of_classes)
        expect(
            len(held),
            "DATASETS.TRAIN has one image of each class, and so none to choose lambda on: expected two of a class, "
            "or LINEAR.VALIDATION",
        )
    return np.setdiff1d(np.arange(len(targets)), held), np.sort(held)


def plot_path(path: list[PathPoint], score: str, output: Path) -> None:
    """The validation score against lambda; fits that did not converge are hollow."""
    strengths, scores, _, converged = zip(*path, strict=True)
    with saved_plot(output, size=(6, 3.6)) as (axis,):
        axis.plot(strengths, scores, color="C0", alpha=0.5)
        axis.scatter(strengths, scores, color="C0", facecolor=["C0" if fits else "white" for fits in converged])
        axis.set(xscale="log", xlabel="lambda", ylabel=f"{score} on the validation images (%)")


def svm(cfg: CfgNode, backbone: Network, train: LabelledSet, test: LabelledSet) -> dict:
    """VOC07 SVM, the VOC column of the paper's ablations: a support-vector machine for each class."""
    fitted = cached_features(cfg, backbone, train)
    tested = cached_features(cfg, backbone, test)
    scores, weight, bias = svm_ap(fitted, tested, cfg.LINEAR)
    save_classifier(cfg, torch.from_numpy(weight), torch.from_numpy(bias), range(len(weight)), unit=True)
    return {"mAP": round(float(np.mean(scores)), 2), "AP": [round(score, 2) for score in scores]}


def svm_ap(train: Labelled, test: Labelled, options: CfgNode) -> tuple[list[float], np.ndarray, np.ndarray]:
    """AP of each class in percent, the area under the interpolated envelope; the machines' weight (T, C) and bias (T,).

    (N, C) features are scaled to a length of about 1; ``options`` is LINEAR.
    """
    fitted, scored = (
        columns(of_length_one(rows), labels, options.DIFFICULT_IS_ABSENT) for rows, labels in (train, test)
    )
    num_classes = train[1].shape[1]
    scores = []
    machines = []
    pairs = zip(fitted, scored, strict=True)
    for problem, (rows, present) in progress("SVM", "class", pairs, total=num_classes):
        machine = LinearSVC(C=options.COST, class_weight={True: 2, False: 1}, max_iter=2000, dual=True, random_state=0)
        machine.fit(*problem)
        margins = machine.decision_function(rows)
        scores.append(envelope_ap(margins, present))
        machines.append(machine)
    return scores, *stacked_weights(machines)


def columns(
    rows: np.ndarray, targets: np.ndarray, difficult_is_absent: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each class of (N, T) targets: the (M, C) rows of the images that count, and which of them show it."""
    for column in targets.T:
        counted = np.ones(len(column), bool) if difficult_is_absent else column != DIFFICULT
        yield (rows if counted.all() else rows[counted]), column[counted] == PRESENT


def eleven_point_ap(scores: np.ndarray, present: np.ndarray) -> float:
    """VOC2007's AP in percent: the mean over recalls 0, .1, ..., 1 of the best precision from there on."""
    precision, recall = _curve(scores, present)
    best = []
    for level in np.linspace(0, 1, 11):
        from_there_on = recall >= level - 1e-12
        best.append(precision[from_there_on].max(initial=0))
    return 100 * float(np.mean(best))


def envelope_ap(scores: np.ndarray, present: np.ndarray) -> float:
    """The area in percent under the precision that is best from each recall on."""
    precision, recall = _curve(scores, present)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    gained = np.diff(recall, prepend=0)
    return 100 * float(np.sum(gained * best))


def _curve(scores: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall after each image, highest score first; the earlier of equal ones."""
    hits = present[np.argsort(-scores, kind="stable")]
    hits_so_far = np.cumsum(hits)
    images_so_far = np.arange(1, len(hits) + 1)
    return hits_so_far / images_so_far, hits_so_far / hits_so_far[-1]


def knn(cfg: CfgNode, backbone: Network, train: LabelledSet, test: LabelledSet) -> dict:
    """The weighted vote of the nearest training images."""
    features = (map(torch.tensor, cached_features(cfg, backbone, data)) for data in (train, test))
    bank, queries = (Features(F.normalize(rows, dim=1), labels) for rows, labels in features)
    options = cfg.KNN_EVAL
    vote = partial(knn_classify, bank, k=options.NUM_NEIGHBORS, temperature=options.TEMPERATURE)
    return {"top1": round(top1(vote, queries), 2)}


def sgd(cfg: CfgNode, backbone: Network, train: LabelledSet, test: LabelledSet) -> dict:
    """A layer trained on random crops, through the network."""
    training = LinearTraining(cfg, backbone, train, test)
    history = training.run(Path(cfg.OUTPUT_DIR))
    plot_history(history, Path(cfg.OUTPUT_DIR) / "curves.png")
    weight = training.layer.weight.detach().cpu()
    bias = training.layer.bias.detach().cpu()
    save_classifier(cfg, weight, bias, range(len(weight)))
    return {"top1": history[-1]["top1"], "top5": history[-1]["top5"], "history": history}


def save_classifier(
    cfg: CfgNode, weight: torch.Tensor, bias: torch.Tensor, labels: Sequence[int], *, unit: bool = False
) -> None:
    """classifier.pth: weight (classes, C) and bias (classes,), float32, names, and how it sees an image.

    ``labels`` are the classes of the rows that are given. Another class has weights of 0 and a bias of minus infinity:
    nothing is taken for it. ``unit``: features have a length of about 1 first.
    """
    names = MetadataCatalog.get(only_dataset(cfg, "TRAIN")).get("thing_classes", [])
    count = max(len(names), 1 + max(labels))
    rows = list(labels)
    weights = torch.zeros(count, weight.shape[1])
    biases = torch.full((count,), -torch.inf)
    weights[rows], biases[rows] = weight.float(), bias.float()
    content = {
        "weight": weights,
        "bias": biases,
        "classes": names,
        "unit": unit,
        "transform": transform_of(cfg),
        "image_size": cfg.LINEAR.IMAGE_SIZE,
    }
    with written_whole(Path(cfg.OUTPUT_DIR) / "classifier.pth") as temporary, open(temporary, "wb") as file:
        torch.save(content, file)


METHODS = {"logistic": logistic, "svm": svm, "knn": knn, "sgd": sgd}

# DATASETS.TRAIN is for training, DATASETS.TEST for the score. knn has KNN_EVAL.NUM_NEIGHBORS and KNN_EVAL.TEMPERATURE,
# sgd SOLVER.BASE_LR, EPOCHS, STEP_EPOCHS and so on.
declare(
    "LINEAR.METHOD",
    "logistic",
    "logistic, svm or knn on features; sgd through the frozen network.",
    one_of(*METHODS),
)
declare("LINEAR.IMAGE_SIZE", 224, "px.", PIXELS)
declare(
    "LINEAR.TRANSFORM",
    "square",
    "square: the whole image, whatever its shape; center_crop: short side to 256/224, then a crop.",
    one_of(*TRANSFORMS),
)
declare("LINEAR.CACHE", "", "Folder of features; '' is OUTPUT_DIR/features.")
declare("LINEAR.VALIDATION", "", "logistic: chooses lambda on it, or a seeded share of DATASETS.TRAIN; then fits both.")
declare("LINEAR.VALIDATION_SHARE", 0.2, "That share.", number(0.001, 0.999))
declare(
    "LINEAR.LAMBDAS",
    (1e-5, 1e5, 45),
    "Lowest, highest and number, log-spaced; scikit-learn's C is 1 / lambda.",
    list_of(POSITIVE, 3),
)
declare("LINEAR.MAX_ITER", 1000, "Of L-BFGS, for each lambda.", integer(1, unit="iterations"))
declare("LINEAR.COST", 0.5, "svm: C.", POSITIVE)
declare(
    "LINEAR.DIFFICULT_IS_ABSENT",
    True,
    "VOC: a class of difficult objects alone is absent; False leaves the image out.",
    SWITCH,
)
