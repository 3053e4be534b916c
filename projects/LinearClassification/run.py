#!/usr/bin/env python
"""Classify images by frozen features: logistic regression, SVM, nearest neighbours, or a layer trained by SGD.

    python projects/LinearClassification/run.py --config-file projects/LinearClassification/configs/cifar10.yaml \\
        --weights backbone.pth --output output/linear/cifar10

Learns from DATASETS.TRAIN and judges DATASETS.TEST; LINEAR.METHOD says how. Features are computed once and kept in
DIR/features; a second call with the same weights, images and transform reads them. DIR/results.json has the score,
DIR/classifier.pth the weights of a linear classifier, which ClassActivationMaps draws.
"""

from __future__ import annotations

import numpy as np

from projects.common.entry import load_study, parse_study_args, write_results
from projects.common.frozen_backbone import FrozenBackbone
from projects.LinearClassification.config import add_linear_config
from projects.LinearClassification.methods import METHODS, read
from projects.LinearClassification.targets import check_classes
from revisit.engine.command import run_command
from revisit.errors import UserError
from revisit.evaluation.features import TRANSFORMS

from detectron2.config import CfgNode


def main() -> None:
    args = parse_study_args(__doc__)
    cfg = load_study(args, add_linear_config)
    check(cfg)
    (train_name,), (test_name,) = cfg.DATASETS.TRAIN, cfg.DATASETS.TEST
    train, test = read(train_name), read(test_name)
    check_classes(train[1], test[1], (train_name, test_name))
    check_method(cfg, train[1])
    backbone = FrozenBackbone(cfg)
    found = METHODS[cfg.LINEAR.METHOD](cfg, backbone, train, test, args.output)
    results = {"protocol": protocol(cfg), "weights": args.weights, **found}
    write_results(args.output, results)
    score = "mAP" if "mAP" in results else "top1"
    print(f"{score} of {test_name}: {results[score]:.2f} % ({results['protocol']})")
    print(f"written to {args.output}: results.json")


def check(cfg: CfgNode) -> None:
    """Raises UserError for options that mean nothing."""
    options = cfg.LINEAR
    for name, choices in (("METHOD", METHODS), ("TRANSFORM", TRANSFORMS)):
        if options[name] not in choices:
            raise UserError(f"LINEAR.{name} is {options[name]!r}, expected one of {', '.join(choices)}")
    for key in ("TRAIN", "TEST"):
        if len(cfg.DATASETS[key]) != 1:
            raise UserError(f"DATASETS.{key} is {tuple(cfg.DATASETS[key])}: expected one data set")
    if not 0 < options.VALIDATION_SHARE < 1:
        raise UserError(f"LINEAR.VALIDATION_SHARE is {options.VALIDATION_SHARE}: expected a share between 0 and 1")
    lambdas = options.LAMBDAS
    if len(lambdas) != 3 or not 0 < lambdas[0] <= lambdas[1] or lambdas[2] < 1:
        raise UserError(f"LINEAR.LAMBDAS {tuple(lambdas)}: expected 0 < lowest <= highest, and how many")
    for name, value in (
        ("LINEAR.IMAGE_SIZE", options.IMAGE_SIZE),
        ("LINEAR.MAX_ITER", options.MAX_ITER),
        ("LINEAR.COST", options.COST),
        ("KNN_EVAL.NUM_NEIGHBORS", cfg.KNN_EVAL.NUM_NEIGHBORS),
        ("KNN_EVAL.TEMPERATURE", cfg.KNN_EVAL.TEMPERATURE),
    ):
        if value <= 0:
            raise UserError(f"{name} is {value}: expected a positive number")


def check_method(cfg: CfgNode, targets: np.ndarray) -> None:
    """Raises UserError where LINEAR.METHOD cannot tell these targets apart."""
    method, several = cfg.LINEAR.METHOD, targets.ndim > 1
    if method == "svm" and not several:
        raise UserError("LINEAR.METHOD svm is for images that show several classes: expected a data set such as VOC's")
    if method in ("knn", "sgd") and several:
        raise UserError(f"LINEAR.METHOD {method} is for images of one class each: expected logistic or svm")
    if method == "sgd" and cfg.SOLVER.EPOCHS < 1:
        raise UserError(f"SOLVER.EPOCHS is {cfg.SOLVER.EPOCHS}: expected 1 or more with LINEAR.METHOD sgd")


def protocol(cfg: CfgNode) -> str:
    """What the score means, in words."""
    options, knn = cfg.LINEAR, cfg.KNN_EVAL
    if options.METHOD == "sgd":
        return f"SGD for {cfg.SOLVER.EPOCHS} epochs on random crops of {options.IMAGE_SIZE} px, judged on central ones"
    low, high, count = options.LAMBDAS
    chosen = options.VALIDATION or f"{options.VALIDATION_SHARE:g} of the training images"
    how = {
        "logistic": f"logistic regression, {int(count)} lambdas from {low:g} to {high:g} chosen on {chosen}",
        "svm": f"linear SVM, C {options.COST:g}, area under the interpolated precision",
        "knn": f"{knn.NUM_NEIGHBORS} nearest neighbours, temperature {knn.TEMPERATURE:g}",
    }[options.METHOD]
    shape = {"square": "whole images", "center_crop": "central crops"}[options.TRANSFORM]
    left_out = "" if options.DIFFICULT_IS_ABSENT else "; images of difficult objects alone left out"
    return f"{how}; pooled {cfg.MODEL.RESNETS.OUT_FEATURES[0]} of {shape} at {options.IMAGE_SIZE} px{left_out}"


if __name__ == "__main__":
    run_command(main)
