#!/usr/bin/env python
"""Classify images by frozen features: logistic regression, SVM, nearest neighbours, or a layer trained by SGD.

    python projects/LinearClassification/run.py --config-file projects/LinearClassification/configs/cifar10.yaml \\
        --weights backbone.pth --output output/linear/cifar10

Trains on DATASETS.TRAIN and scores DATASETS.TEST; LINEAR.METHOD says how. Features are computed once and kept in
DIR/features; a second call with the same weights, images and transform reads them. DIR/results.json has the score,
DIR/classifier.pth the weights of a linear classifier, which ClassActivationMaps draws.
"""

from projects.common.entry import expect_positive, load_project, only_dataset, write_results
from projects.common.frozen_backbone import FrozenBackbone
from projects.LinearClassification.labelled_sets import check_classes, read_set
from projects.LinearClassification.methods import METHODS
from revisit.config import expect_one_of
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.evaluation.features import TRANSFORMS

from detectron2.config import CfgNode


def add_linear_config(cfg: CfgNode) -> None:
    """Add LINEAR to a config, in place. DATASETS.TRAIN is for training, DATASETS.TEST for the score."""
    cfg.LINEAR = options = CfgNode()
    options.METHOD = "logistic"  # logistic | svm | knn on features | sgd through the frozen network
    options.IMAGE_SIZE = 224  # px
    options.TRANSFORM = "square"  # the whole image, whatever its shape; center_crop: short side to 256/224, then a crop
    options.CACHE = ""  # folder of features; "" is OUTPUT_DIR/features
    # logistic: lambda is chosen on this data set, or on a seeded share of DATASETS.TRAIN, and fitted to both again.
    options.VALIDATION = ""
    options.VALIDATION_SHARE = 0.2
    options.LAMBDAS = (1e-5, 1e5, 45)  # lowest, highest and number, log-spaced; scikit-learn's C is 1 / lambda
    options.MAX_ITER = 1000  # of L-BFGS, for each lambda
    options.COST = 0.5  # svm: C
    options.DIFFICULT_IS_ABSENT = True  # VOC: a class of difficult objects alone is absent; False leaves the image out
    # knn: KNN_EVAL.NUM_NEIGHBORS and KNN_EVAL.TEMPERATURE. sgd: SOLVER.BASE_LR, EPOCHS, STEP_EPOCHS and so on.


def main() -> None:
    cfg = load_project(__doc__, add_linear_config)
    check(cfg)
    train, test = (read_set(only_dataset(cfg, split)) for split in ("TRAIN", "TEST"))
    check_classes(train.targets, test.targets, (train.name, test.name))
    several, method = train.targets.ndim > 1, cfg.LINEAR.METHOD
    fits = several or method != "svm"
    expect(fits, "LINEAR.METHOD svm is for images that show several classes: expected a data set such as VOC's")
    fits = not several or method not in ("knn", "sgd")
    expect(fits, f"LINEAR.METHOD {method} is for images of one class each: expected logistic or svm")
    found = METHODS[method](cfg, FrozenBackbone(cfg), train, test)
    write_results(cfg, protocol(cfg), found)
    score = "mAP" if "mAP" in found else "top1"
    print(f"{score} of {test.name}: {found[score]:.2f} % ({protocol(cfg)})")
    print(f"written to {cfg.OUTPUT_DIR}: results.json")


def check(cfg: CfgNode) -> None:
    """Raises UserError for options that mean nothing."""
    expect_one_of(cfg, "LINEAR.METHOD", tuple(METHODS))
    expect_one_of(cfg, "LINEAR.TRANSFORM", tuple(TRANSFORMS))
    share, lambdas = cfg.LINEAR.VALIDATION_SHARE, tuple(cfg.LINEAR.LAMBDAS)
    expect(0 < share < 1, f"LINEAR.VALIDATION_SHARE is {share}: expected a share between 0 and 1")
    ordered = len(lambdas) == 3 and 0 < lambdas[0] <= lambdas[1] and lambdas[2] >= 1
    expect(ordered, f"LINEAR.LAMBDAS {lambdas}: expected 0 < lowest <= highest, and how many")
    options = ("LINEAR.IMAGE_SIZE", "LINEAR.MAX_ITER", "LINEAR.COST", "KNN_EVAL.NUM_NEIGHBORS", "KNN_EVAL.TEMPERATURE")
    expect_positive(cfg, *options, *(["SOLVER.EPOCHS"] if cfg.LINEAR.METHOD == "sgd" else []))


def protocol(cfg: CfgNode) -> str:
    """What the score means, in words."""
    options, knn = cfg.LINEAR, cfg.KNN_EVAL
    if options.METHOD == "sgd":
        return f"SGD for {cfg.SOLVER.EPOCHS} epochs on random crops of {options.IMAGE_SIZE} px, scored on central ones"
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
