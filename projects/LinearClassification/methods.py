"""The four ways to classify frozen features, each from labelled images to the entries of results.json."""

import logging
from pathlib import Path

import numpy as np
import torch
from sklearn.svm import LinearSVC
from torch.nn import functional as F
from tqdm import tqdm

from projects.common.frozen_backbone import FrozenBackbone
from revisit.evaluation.features import Features
from revisit.evaluation.knn import knn_top1
from revisit.files import written_whole

from detectron2.config import CfgNode

from .feature_cache import cached_features
from .logistic import Classifier, fit_path, plot_path, split_off
from .sgd import LinearTraining, plot_history
from .targets import Labelled, LabelledSet, check_classes, columns, envelope_ap, read_set

logger = logging.getLogger(__name__)


def logistic(cfg: CfgNode, backbone: FrozenBackbone, train: LabelledSet, test: LabelledSet) -> dict:
    """Choose lambda on validation images, fit all labelled ones again, score the test images."""
    options = cfg.LINEAR
    rows, targets = cached_features(cfg, backbone, train)
    if options.VALIDATION:
        validation = read_set(options.VALIDATION)
        check_classes(targets, validation.targets, (train.name, validation.name))
        fitted, held = (rows, targets), cached_features(cfg, backbone, validation)
    else:
        kept, out = split_off(targets, options.VALIDATION_SHARE, cfg.SEED)
        part = f"{1 - options.VALIDATION_SHARE:g} of {train.name}", f"{options.VALIDATION_SHARE:g} of it"
        check_classes(targets[kept], targets[out], part)
        fitted, held = (rows[kept], targets[kept]), (rows[out], targets[out])
    searcher, final = (Classifier(options.MAX_ITER, options.DIFFICULT_IS_ABSENT) for _ in range(2))
    path = fit_path(searcher, fitted, held, options.LAMBDAS)
    best = max(path, key=lambda point: point.score)  # of equals the first, which has the strongest regularisation
    everything = tuple(np.concatenate(parts) for parts in zip(fitted, held, strict=True))
    iterations, converged = final.fit(*everything, best.strength)
    if not converged:
        logger.warning(f"the final fit did not converge in {iterations} iterations: raise LINEAR.MAX_ITER")
    score = "top1" if targets.ndim == 1 else "mAP"
    plot_path(path, score, Path(cfg.OUTPUT_DIR) / "path.png")
    save_classifier(cfg, *final.weights())
    return {
        score: round(final.score(*cached_features(cfg, backbone, test)), 2),
        "lambda": best.strength,
        "validation": round(best.score, 2),
        "iterations": iterations,
        "converged": converged,
        "path": [point._asdict() for point in path],
    }


def svm(cfg: CfgNode, backbone: FrozenBackbone, train: LabelledSet, test: LabelledSet) -> dict:
    """VOC07 SVM, the VOC column of the paper's ablations: a support-vector machine for each class."""
    pairs = (cached_features(cfg, backbone, data) for data in (train, test))
    scores, weight, bias = svm_ap(*pairs, cfg.LINEAR.COST, cfg.LINEAR.DIFFICULT_IS_ABSENT)
    save_classifier(cfg, torch.from_numpy(weight), torch.from_numpy(bias))
    return {"mAP": round(float(np.mean(scores)), 2), "AP": [round(score, 2) for score in scores]}


def svm_ap(
    train: Labelled, test: Labelled, cost: float, difficult_is_absent: bool
) -> tuple[list[float], np.ndarray, np.ndarray]:
    """AP of each class in percent, the area under the interpolated envelope; the machines' weight (T, C) and bias (T,).

    Args:
        train, test: (N, C) features, which are scaled to a length of about 1, and (N, T) labels of 1, 0 and -1.
        cost: C, of the squared hinge.
    """
    fitted, scored = (
        columns(rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-5), labels, difficult_is_absent)
        for rows, labels in (train, test)
    )
    scores, machines = [], []
    pairs = tqdm(zip(fitted, scored, strict=True), total=train[1].shape[1], unit="class", desc="SVM")
    for problem, (rows, present) in pairs:
        machine = LinearSVC(C=cost, class_weight={True: 2, False: 1}, max_iter=2000, dual=True, random_state=0)
        scores.append(envelope_ap(machine.fit(*problem).decision_function(rows), present))
        machines.append(machine)
    return scores, *(np.concatenate([getattr(m, name) for m in machines]) for name in ("coef_", "intercept_"))


def knn(cfg: CfgNode, backbone: FrozenBackbone, train: LabelledSet, test: LabelledSet) -> dict:
    """The weighted vote of the nearest training images."""
    pairs = (cached_features(cfg, backbone, data) for data in (train, test))
    bank, queries = (Features(F.normalize(torch.tensor(rows), dim=1), torch.tensor(labels)) for rows, labels in pairs)
    options = cfg.KNN_EVAL
    return {"top1": round(knn_top1(bank, queries, k=options.NUM_NEIGHBORS, temperature=options.TEMPERATURE), 2)}


def sgd(cfg: CfgNode, backbone: FrozenBackbone, train: LabelledSet, test: LabelledSet) -> dict:
    """A layer trained on random crops, through the network."""
    training = LinearTraining(cfg, backbone, train, test)
    history = training.run(Path(cfg.OUTPUT_DIR))
    plot_history(history, Path(cfg.OUTPUT_DIR) / "curves.png")
    save_classifier(cfg, training.layer.weight.detach().cpu(), training.layer.bias.detach().cpu())
    return {"top1": history[-1]["top1"], "top5": history[-1]["top5"], "history": history}


def save_classifier(cfg: CfgNode, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """classifier.pth: weight (classes, C) and bias (classes,), float32, and how the classifier sees an image."""
    transform = "center_crop" if cfg.LINEAR.METHOD == "sgd" else cfg.LINEAR.TRANSFORM
    content = {"weight": weight.float().contiguous(), "bias": bias.float().contiguous()}
    with written_whole(Path(cfg.OUTPUT_DIR) / "classifier.pth") as temporary:
        torch.save({**content, "transform": transform, "image_size": cfg.LINEAR.IMAGE_SIZE}, temporary)


METHODS = {"logistic": logistic, "svm": svm, "knn": knn, "sgd": sgd}
