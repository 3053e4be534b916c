"""The four ways to classify frozen features, each from labelled records to the entries of results.json."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from projects.common.feature_cache import Transform, cached_features
from projects.common.frozen_backbone import FrozenBackbone
from revisit.data.catalog import get_records
from revisit.evaluation.features import TRANSFORMS, Features
from revisit.evaluation.knn import knn_top1
from revisit.files import written_whole

from detectron2.config import CfgNode

from .logistic import Classifier, best_strength, fit_path, split_off, strengths
from .margin import svm_ap
from .score_curves import plot_history, plot_path
from .sgd import LinearTraining
from .targets import check_classes, read_targets

Data = tuple[list[dict], np.ndarray]  # records and targets

logger = logging.getLogger(__name__)


def read(dataset: str) -> Data:
    records = get_records(dataset)
    return records, read_targets(records, dataset)


def logistic(cfg: CfgNode, backbone: FrozenBackbone, train: Data, test: Data, output: Path) -> dict:
    """Choose lambda on validation images, fit all labelled ones again, judge the test images."""
    options, (train_name,), (test_name,) = cfg.LINEAR, cfg.DATASETS.TRAIN, cfg.DATASETS.TEST
    rows, targets = features(cfg, backbone, train_name, train[0], output), train[1]
    if options.VALIDATION:
        records, held_targets = read(options.VALIDATION)
        check_classes(targets, held_targets, (train_name, options.VALIDATION))
        held_rows = features(cfg, backbone, options.VALIDATION, records, output)
        fitted, held = (rows, targets), (held_rows, held_targets)
    else:
        kept, out = split_off(targets, options.VALIDATION_SHARE, cfg.SEED)
        part = f"{1 - options.VALIDATION_SHARE:g} of {train_name}", f"{options.VALIDATION_SHARE:g} of it"
        check_classes(targets[kept], targets[out], part)
        fitted, held = (rows[kept], targets[kept]), (rows[out], targets[out])
    low, high, count = options.LAMBDAS
    searcher = Classifier(options.MAX_ITER, options.DIFFICULT_IS_ABSENT)
    path = fit_path(searcher, fitted, held, strengths(low, high, int(count)))
    best = best_strength(path)
    final = Classifier(options.MAX_ITER, options.DIFFICULT_IS_ABSENT)
    everything = tuple(np.concatenate(parts) for parts in zip(fitted, held, strict=True))
    iterations, converged = final.fit(*everything, best.strength)
    if not converged:
        logger.warning(f"the final fit did not converge in {iterations} iterations: raise LINEAR.MAX_ITER")
    score = "top1" if targets.ndim == 1 else "mAP"
    plot_path(path, score, output / "path.png")
    save_classifier(cfg, output, *final.weights())
    return {
        score: round(final.score(features(cfg, backbone, test_name, test[0], output), test[1]), 2),
        "lambda": best.strength,
        "validation": round(best.score, 2),
        "iterations": iterations,
        "converged": converged,
        "path": [vars(point) for point in path],
    }


def svm(cfg: CfgNode, backbone: FrozenBackbone, train: Data, test: Data, output: Path) -> dict:
    (train_name,), (test_name,) = cfg.DATASETS.TRAIN, cfg.DATASETS.TEST
    pairs = [
        (features(cfg, backbone, name, records, output), targets)
        for name, (records, targets) in ((train_name, train), (test_name, test))
    ]
    scores, weight, bias = svm_ap(*pairs, cfg.LINEAR.COST, cfg.LINEAR.DIFFICULT_IS_ABSENT)
    save_classifier(cfg, output, torch.from_numpy(weight), torch.from_numpy(bias))
    return {"mAP": round(float(np.mean(scores)), 2), "AP": [round(score, 2) for score in scores]}


def knn(cfg: CfgNode, backbone: FrozenBackbone, train: Data, test: Data, output: Path) -> dict:
    (train_name,), (test_name,) = cfg.DATASETS.TRAIN, cfg.DATASETS.TEST
    bank, judged = (
        Features(unit_rows(features(cfg, backbone, name, records, output)), torch.from_numpy(targets))
        for name, (records, targets) in ((train_name, train), (test_name, test))
    )
    options = cfg.KNN_EVAL
    return {"top1": round(knn_top1(bank, judged, k=options.NUM_NEIGHBORS, temperature=options.TEMPERATURE), 2)}


def sgd(cfg: CfgNode, backbone: FrozenBackbone, train: Data, test: Data, output: Path) -> dict:
    training = LinearTraining(cfg, backbone, train, test)
    history = training.run(output)
    plot_history(history, output / "curves.png")
    save_classifier(cfg, output, training.layer.weight.detach().cpu(), training.layer.bias.detach().cpu())
    return {"top1": history[-1]["top1"], "top5": history[-1]["top5"], "history": history}


def features(cfg: CfgNode, backbone: FrozenBackbone, dataset: str, records: list[dict], output: Path) -> np.ndarray:
    """(N, C) float32, from the cache where they are there."""
    size = cfg.LINEAR.IMAGE_SIZE
    transform = Transform(f"{cfg.LINEAR.TRANSFORM} {size} px", partial(TRANSFORMS[cfg.LINEAR.TRANSFORM], size=size))
    folder = Path(cfg.LINEAR.CACHE) if cfg.LINEAR.CACHE else output / "features"
    return np.asarray(cached_features(folder, cfg, backbone, dataset, records, transform))


def unit_rows(rows: np.ndarray) -> torch.Tensor:
    return F.normalize(torch.from_numpy(np.array(rows)), dim=1)


def save_classifier(cfg: CfgNode, output: Path, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """classifier.pth: weight (classes, C) and bias (classes,), float32, and how the classifier sees an image."""
    transform = "center_crop" if cfg.LINEAR.METHOD == "sgd" else cfg.LINEAR.TRANSFORM
    content = {"weight": weight.float().contiguous(), "bias": bias.float().contiguous()}
    with written_whole(output / "classifier.pth") as temporary:
        torch.save({**content, "transform": transform, "image_size": cfg.LINEAR.IMAGE_SIZE}, temporary)


METHODS = {"logistic": logistic, "svm": svm, "knn": knn, "sgd": sgd}
