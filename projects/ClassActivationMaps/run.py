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
from class_activation_maps.cam import activation_map, load_classifier, overlay
from class_activation_maps.config import add_cam_config

from revisit.data.catalog import get_records
from revisit.data.mapper import crop_and_resize, read_record
from revisit.engine.command import run_command
from revisit.engine.study import load_study, parse_study_args, write_results
from revisit.errors import UserError
from revisit.evaluation.sheets import Row, fit, save_sheet
from revisit.modeling.frozen import FrozenBackbone

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog


class Network(NamedTuple):
    """A backbone with the classifier on it."""

    name: str
    backbone: FrozenBackbone
    weight: torch.Tensor  # (classes, C)
    bias: torch.Tensor  # (classes,)


def main() -> None:
    args = parse_study_args(__doc__)
    cfg = load_study(args, add_cam_config)
    records, names = read_data(cfg)
    networks = load_networks(cfg, args.weights, len(names))
    count = min(cfg.CAM.NUM_IMAGES, len(records))
    chosen = [records[int(n)] for n in np.linspace(0, len(records) - 1, count)]
    rows, found = zip(*(draw(cfg, record, networks, names) for record in chosen), strict=True)
    headers = ["image", *(network.name for network in networks)]
    save_sheet(args.output / "cams.png", list(rows), headers, "Class activation maps of the true class")
    write_results(args.output, {"protocol": "weight . map, no bias, no ReLU", "weights": args.weights, "images": found})
    print(f"written to {args.output}: results.json and cams.png")


def read_data(cfg: CfgNode) -> tuple[list[dict], list[str]]:
    """Labelled records and the names of their classes."""
    if len(cfg.DATASETS.TEST) != 1 or cfg.CAM.NUM_IMAGES < 1:
        raise UserError("expected one data set in DATASETS.TEST, and CAM.NUM_IMAGES of 1 or more")
    (dataset,) = cfg.DATASETS.TEST
    records = get_records(dataset)
    if "label" not in records[0]:
        raise UserError(f"data set {dataset!r} has no class for each image: expected class folders")
    count = max(record["label"] for record in records) + 1
    return records, MetadataCatalog.get(dataset).get("thing_classes", [f"class {n}" for n in range(count)])


def load_networks(cfg: CfgNode, weights: str, num_classes: int) -> list[Network]:
    """The network of --weights and, if there is one, the one to compare it with."""
    options = cfg.CAM
    if bool(options.OTHER_WEIGHTS) != bool(options.OTHER_CLASSIFIER):
        raise UserError("a comparison needs both CAM.OTHER_WEIGHTS and CAM.OTHER_CLASSIFIER")
    if options.OTHER_WEIGHTS and not Path(options.OTHER_WEIGHTS).is_file():
        raise UserError(f"CAM.OTHER_WEIGHTS {options.OTHER_WEIGHTS} not found: expected a file of weights")
    networks = []
    for name, file, classifier in (
        (weights, cfg.MODEL.WEIGHTS, options.CLASSIFIER),
        (options.OTHER_WEIGHTS, options.OTHER_WEIGHTS, options.OTHER_CLASSIFIER),
    )[: 1 + bool(options.OTHER_WEIGHTS)]:
        own = cfg.clone()
        own.defrost()
        own.MODEL.WEIGHTS = file
        backbone = FrozenBackbone(own)
        (channels,) = {shape.channels for shape in backbone.backbone.output_shape().values()}
        weight, bias = load_classifier(classifier, channels)
        if len(weight) != num_classes:
            raise UserError(f"{classifier} tells {len(weight)} classes apart, the data set has {num_classes}")
        networks.append(Network(name, backbone, weight, bias))
    return networks


def draw(cfg: CfgNode, record: dict, networks: list[Network], names: list[str]) -> tuple[Row, dict]:
    """A row of cams.png, and what each network takes the image for."""
    image, size = read_record(record), cfg.CAM.IMAGE_SIZE
    square = crop_and_resize(image, np.array([0, 0, image.shape[1], image.shape[0]]), size)
    panels, taken = [fit(image)], []
    for network in networks:
        (maps,) = network.backbone(torch.from_numpy(square).permute(2, 0, 1)[None]).values()
        features = maps[0].cpu()
        logits = network.weight @ features.mean(dim=(1, 2)) + network.bias
        taken.append(names[int(logits.argmax())])
        panels.append(fit(overlay(image, activation_map(features, network.weight[record["label"]]).numpy())))
    truth = names[record["label"]]
    said = ", ".join(f"{network.name}: {name}" for network, name in zip(networks, taken, strict=True))
    found = {"file_name": record.get("file_name", ""), "truth": truth, "taken_for": taken}
    return Row(f"{truth}; taken for {said}", panels), found


if __name__ == "__main__":
    run_command(main)
