#!/usr/bin/env python
"""Show where a linear classifier on frozen features finds its class.

    python projects/LinearClassification/run.py --config-file projects/LinearClassification/configs/toy.yaml \\
        --weights backbone.pth --output output/linear
    python projects/ClassActivationMaps/run.py --config-file projects/ClassActivationMaps/configs/toy.yaml \\
        --weights backbone.pth --output output/cams CAM.CLASSIFIER output/linear/classifier.pth

DIR/cams.png: images, each beside the map of its true class. With CAM.OTHER_WEIGHTS and CAM.OTHER_CLASSIFIER a second
network's maps stand beside the first one's. DIR/results.json says what each classifier took the images for.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from projects.ClassActivationMaps.cam import LinearClassifier, activation_map, load_classifier, overlay
from projects.ClassActivationMaps.config import add_cam_config
from projects.common.entry import load_study, parse_study_args, write_results
from projects.common.frozen_backbone import FrozenBackbone
from revisit.data.catalog import get_records
from revisit.data.classification_datasets import PRESENT
from revisit.data.mapper import require_record
from revisit.engine.command import run_command
from revisit.errors import UserError
from revisit.evaluation.features import TRANSFORMS
from revisit.viz.prediction_sheet import Row, fit, save_sheet

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog


class Network(NamedTuple):
    """A backbone with the classifier on it."""

    name: str
    backbone: FrozenBackbone
    classifier: LinearClassifier


def main() -> None:
    args = parse_study_args(__doc__)
    cfg = load_study(args, add_cam_config)
    records, names = read_data(cfg)
    records = [record for record in records if class_of(record) >= 0]
    networks = load_networks(cfg, args.weights, 1 + max(map(class_of, records), default=0))
    count = min(cfg.CAM.NUM_IMAGES, len(records))
    chosen = [records[int(n)] for n in np.linspace(0, len(records) - 1, count)]
    rows, found = zip(*(draw(cfg, record, networks, names) for record in chosen), strict=True)
    headers = ["image", *(network.name for network in networks)]
    save_sheet(args.output / "cams.png", list(rows), headers, "Class activation maps of the true class")
    write_results(args.output, {"protocol": "weight . map, no bias, no ReLU", "weights": args.weights, "images": found})
    print(f"written to {args.output}: results.json and cams.png")


def read_data(cfg: CfgNode) -> tuple[list[dict], list[str]]:
    """Labelled records, and the names of their classes as far as the data set gives them."""
    if len(cfg.DATASETS.TEST) != 1 or cfg.CAM.NUM_IMAGES < 1:
        raise UserError("expected one data set in DATASETS.TEST, and CAM.NUM_IMAGES of 1 or more")
    (dataset,) = cfg.DATASETS.TEST
    records = get_records(dataset)
    if not records[0].keys() & {"label", "labels"}:
        raise UserError(f"data set {dataset!r} has no class for each image: expected class folders, or a set by name")
    return records, MetadataCatalog.get(dataset).get("thing_classes", [])


def class_of(record: dict) -> int:
    """The class of an image; of several the first that it shows, -1 if it shows none."""
    if "label" in record:
        return record["label"]
    return record["labels"].index(PRESENT) if PRESENT in record["labels"] else -1


def load_networks(cfg: CfgNode, weights: str, num_classes: int) -> list[Network]:
    """The network of --weights and, if there is one, the one to compare it with."""
    options = cfg.CAM
    if bool(options.OTHER_WEIGHTS) != bool(options.OTHER_CLASSIFIER):
        raise UserError("a comparison needs both CAM.OTHER_WEIGHTS and CAM.OTHER_CLASSIFIER")
    wanted = [(weights, cfg.MODEL.WEIGHTS, options.CLASSIFIER)]
    if options.OTHER_WEIGHTS:
        if not Path(options.OTHER_WEIGHTS).is_file():
            raise UserError(f"CAM.OTHER_WEIGHTS {options.OTHER_WEIGHTS} not found: expected a file of weights")
        wanted.append((options.OTHER_WEIGHTS, options.OTHER_WEIGHTS, options.OTHER_CLASSIFIER))
    networks = []
    for name, file, path in wanted:
        own = cfg.clone()
        own.defrost()
        own.MODEL.WEIGHTS = file
        backbone = FrozenBackbone(own)
        classifier = load_classifier(path, backbone.channels)
        if len(classifier.weight) < num_classes:
            known = len(classifier.weight)
            raise UserError(f"{path} tells {known} classes apart, {cfg.DATASETS.TEST[0]} has {num_classes} or more")
        networks.append(Network(name, backbone, classifier))
    return networks


def draw(cfg: CfgNode, record: dict, networks: list[Network], names: list[str]) -> tuple[Row, dict]:
    """A row of cams.png, and what each network takes the image for."""

    def name_of(label: int) -> str:
        return names[label] if label < len(names) else f"class {label}"

    image, label = require_record(record), class_of(record)
    panels, taken = [fit(image)], []
    for network in networks:
        classifier = network.classifier
        view = TRANSFORMS[classifier.transform](image, classifier.image_size)
        features = network.backbone(torch.from_numpy(view).permute(2, 0, 1)[None])[0].cpu()
        logits = classifier.weight @ features.mean(dim=(1, 2)) + classifier.bias
        taken.append(name_of(int(logits.argmax())))
        cam = activation_map(features, classifier.weight[label]).numpy()
        panels.append(fit(overlay(image if classifier.transform == "square" else view, cam)))
    said = "; ".join(f"{network.name} says {name}" for network, name in zip(networks, taken, strict=True))
    found = {"file_name": record.get("file_name", ""), "truth": name_of(label), "taken_for": taken}
    return Row(f"{name_of(label)}; {said}", panels), found


if __name__ == "__main__":
    run_command(main)
