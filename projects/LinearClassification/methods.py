"""The four ways to classify frozen features, each from labelled images to the entries of results.json."""

import logging
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from projects.common.feature_cache import Transform, cached_features
from projects.common.frozen_backbone import FrozenBackbone
from revisit.evaluation.classifiers import knn_top1
from revisit.evaluation.features import TRANSFORMS, Features
from revisit.files import written_whole

from detectron2.config import CfgNode

from .logistic import Classifier, best_strength, fit_path, plot_path, split_off, strengths
from .margin import svm_ap
from .sgd import LinearTraining, plot_history
from .targets import LabelledSet, check_classes, read_set

logger = logging.getLogger(__name__)


def logistic(cfg: CfgNode, backbone: FrozenBackbone, train: LabelledSet, test: LabelledSet) -> dict:
    """Choose lambda on validation images, fit all labelled ones again, score the test images."""
    options, output = cfg.LINEAR, Path(cfg.OUTPUT_DIR)
    rows, targets = features(cfg, backbone, train)
    if options.VALIDATION:
        validation = read_set(options.VALIDATION)
        check_classes(targets, validation.targets, (train.name, validation.name))
        fitted, held = (rows, targets), features(cfg, backbone, validation)
    else:
        kept, out = split_off(targets, options.VALIDATION_SHARE, cfg.SEED)
        part = f"{1 - options.VALIDATION_SHARE:g} of {train.name}", f"{options.VALIDATION_SHARE:g} of it"
        check_classes(targets[kept], targets[out], part)
        fitted, held = (rows[kept], targets[kept]), (rows[out], targets[out])
    low, high, count = options.LAMBDAS
    searcher, final = (Classifier(options.MAX_ITER, options.DIFFICULT_IS_ABSENT) for _ in range(2))
    path = fit_path(searcher, fitted, held, strengths(low, high, int(count)))
    best = best_strength(path)
    everything = tuple(np.concatenate(parts) for parts in zip(fitted, held, strict=True))
    iterations, converged = final.fit(*everything, best.strength)
    if not converged:
        logger.warning(f"the final fit did not converge in {iterations} iterations: raise LINEAR.MAX_ITER")
    score = "top1" if targets.ndim == 1 else "mAP"
    plot_path(path, score, output / "path.png")
    save_classifier(cfg, *final.weights())
    return {
        score: round(final.score(*features(cfg, backbone, test)), 2),
        "lambda": best.strength,
        "validation": round(best.score, 2),
        "iterations": iterations,
        "converged": converged,
        "path": [vars(point) for point in path],
    }


def svm(cfg: CfgNode, backbone: FrozenBackbone, train: LabelledSet, test: LabelledSet) -> dict:
    """A support-vector machine for each class."""
    pairs = (features(cfg, backbone, data) for data in (train, test))
    scores, weight, bias = svm_ap(*pairs, cfg.LINEAR.COST, cfg.LINEAR.DIFFICULT_IS_ABSENT)
    save_classifier(cfg, torch.from_numpy(weight), torch.from_numpy(bias))
    return {"mAP": round(float(np.mean(scores)), 2), "AP": [round(score, 2) for score in scores]}


def knn(cfg: CfgNode, backbone: FrozenBackbone, train: LabelledSet, test: LabelledSet) -> dict:
    """The weighted vote of the nearest training images."""
    pairs = (features(cfg, backbone, data) for data in (train, test))
    bank, queries = (
        Features(F.normalize(torch.from_numpy(np.array(rows)), dim=1), torch.from_numpy(targets))
        for rows, targets in pairs
    )
    options = cfg.KNN_EVAL
    return {"top1": round(knn_top1(bank, queries, k=options.NUM_NEIGHBORS, temperature=options.TEMPERATURE), 2)}


def sgd(cfg: CfgNode, backbone: FrozenBackbone, train: LabelledSet, test: LabelledSet) -> dict:
    """A layer trained on random crops, through the network."""
    training = LinearTraining(cfg, backbone, train, test)
    history = training.run(Path(cfg.OUTPUT_DIR))
    plot_history(history, Path(cfg.OUTPUT_DIR) / "curves.png")
    save_classifier(cfg, training.layer.weight.detach().cpu(), training.layer.bias.detach().cpu())
    return {"top1": history[-1]["top1"], "top5": history[-1]["top5"], "history": history}


def features(cfg: CfgNode, backbone: FrozenBackbone, data: LabelledSet) -> tuple[np.ndarray, np.ndarray]:
    """(N, C) float32, from the cache if they are there, and the targets."""
    name, size = cfg.LINEAR.TRANSFORM, cfg.LINEAR.IMAGE_SIZE
    transform = Transform(f"{name} {size} px", partial(TRANSFORMS[name], size=size))
    folder = Path(cfg.LINEAR.CACHE or Path(cfg.OUTPUT_DIR) / "features")
    return np.asarray(cached_features(folder, cfg, backbone, data.name, data.records, transform)), data.targets


def save_classifier(cfg: CfgNode, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """classifier.pth: weight (classes, C) and bias (classes,), float32, and how the classifier sees an image."""
    transform = "center_crop" if cfg.LINEAR.METHOD == "sgd" else cfg.LINEAR.TRANSFORM
    content = {"weight": weight.float().contiguous(), "bias": bias.float().contiguous()}
    with written_whole(Path(cfg.OUTPUT_DIR) / "classifier.pth") as temporary:
        torch.save({**content, "transform": transform, "image_size": cfg.LINEAR.IMAGE_SIZE}, temporary)


METHODS = {"logistic": logistic, "svm": svm, "knn": knn, "sgd": sgd}
