#!/usr/bin/env python
"""Show where a linear classifier on frozen features finds the evidence for a class.

    python projects/FrozenEvaluations/linear.py \\
        --config-file projects/FrozenEvaluations/configs/linear/toy.yaml \\
        --weights backbone.pth --output output/linear
    python projects/FrozenEvaluations/cams.py \\
        --config-file projects/FrozenEvaluations/configs/cams/toy.yaml \\
        --weights backbone.pth --output output/cams CAM.CLASSIFIER output/linear/classifier.pth

DIR/cams.png: images, each next to the map of its true class. With CAM.OTHER_WEIGHTS and CAM.OTHER_CLASSIFIER a second
network's maps stand next to the first one's. DIR/results.json has the class that each classifier predicts.
"""

if __name__ == "__main__":  # before the imports below, which take seconds
    from revisit.command.evaluation_options import run_project

    run_project("FrozenEvaluations.cams", __doc__)

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor

from projects.Pictures.label_maps import enlarge_map
from projects.Pictures.tiles import SheetRow, fit, save_sheet
from revisit.checkpoint import RANDOM
from revisit.command.evaluation_config import only_dataset, write_results
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import require_record
from revisit.data.sources.catalog import get_records
from revisit.data.sources.class_names import index_by_name
from revisit.data.sources.records import PRESENT, sample
from revisit.errors import expect, translated
from revisit.evaluation.features import TRANSFORMS, check_not_enlarged
from revisit.keys import COUNT, Facts, declare, resolve_auto_values
from revisit.network.network import Network

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

from .labelled_sets import of_length_one

MAP_SHARE = 0.5  # of the map's colour in the overlay

declare("CAM.CLASSIFIER", "", "classifier.pth of projects/FrozenEvaluations, made with the same --weights.")
declare("CAM.OTHER_WEIGHTS", "", "Of a second network of the same architecture, to compare with; random: drawn.")
declare("CAM.OTHER_CLASSIFIER", "", "And its classifier.")
declare("CAM.NUM_IMAGES", 10, "Rows of cams.png, spread over the data set.", COUNT)


class Classifier(NamedTuple):
    """A backbone, and the content of projects/FrozenEvaluations's classifier.pth for it."""

    name: str
    backbone: Network
    weight: Tensor  # (classes, C)
    bias: Tensor  # (classes,)
    transform: str  # how the classifier sees an image, a key of TRANSFORMS
    image_size: int  # px
    classes: list[str] = []  # by row, where the data that it was trained on have names
    unit: bool = False  # whether features have a length of about 1 first

    def logits(self, features: Tensor) -> Tensor:
        """(classes,) float32 of the (C, h, w) map of an image."""
        rows = features.mean(dim=(1, 2))[None].numpy()
        pooled = of_length_one(rows) if self.unit else rows
        return self.weight @ torch.from_numpy(pooled[0]) + self.bias


def main(cfg: CfgNode) -> None:
    dataset = only_dataset(cfg, "TEST")
    records = get_records(dataset)
    names = MetadataCatalog.get(dataset).get("thing_classes", [])
    records = [record for record in records if class_of(record) >= 0]
    expect(records, f"no image of {dataset} shows a class: expected class folders, or a set by name")
    resolve_auto_values(cfg, Facts(records=records))
    networks = [in_order(network, names, dataset) for network in load_networks(cfg, 1 + max(map(class_of, records)))]
    for network in networks:
        check_not_enlarged(dataset, network.image_size, "the classifier's image size", network.transform)
    chosen = sample(records, cfg.CAM.NUM_IMAGES)
    rows, predictions = zip(*(draw(record, pixel_format(cfg), networks, names) for record in chosen), strict=True)
    save_sheet(
        Path(cfg.OUTPUT_DIR, "cams.png"),
        list(rows),
        ["image", *(network.name for network in networks)],
        title="Class activation maps of the true class",
    )
    write_results(cfg, "class activation maps: weight . map, no bias, no ReLU", {"images": predictions})


def class_of(record: dict) -> int:
    """The class of an image; of several the first that it shows, -1 if it shows none."""
    several = enumerate(record.get("labels", ()))
    return next((label for label, shown in several if shown == PRESENT), record.get("label", -1))


def load_networks(cfg: CfgNode, num_classes: int) -> list[Classifier]:
    """The network of --weights and, if there is one, the one to compare it with. Raises UserError where none fits."""
    options = cfg.CAM
    own = cfg.clone()
    own.defrost()
    pairs = [(cfg.MODEL.WEIGHTS, options.CLASSIFIER)]
    if options.OTHER_WEIGHTS or options.OTHER_CLASSIFIER:
        pairs.append((options.OTHER_WEIGHTS, options.OTHER_CLASSIFIER))
        expect(all(pairs[1]), "a comparison needs both CAM.OTHER_WEIGHTS and CAM.OTHER_CLASSIFIER")
    networks = []
    for weights, path in pairs:
        own.MODEL.WEIGHTS = "" if weights == RANDOM else weights
        backbone = Network.of_config(own)
        with translated(f"reading CAM.CLASSIFIER {path!r}, a classifier.pth of projects/FrozenEvaluations"):
            content = torch.load(path, map_location="cpu", weights_only=True)
            networks.append(Classifier(weights or RANDOM, backbone, **content))
        rows, width = networks[-1].weight.shape
        channels = backbone.shape.channels
        expect(
            rows >= num_classes and width == channels,
            f"{path} is for {rows} classes of {width} channels: expected {num_classes} of {channels}, or more classes",
        )
    return networks


def in_order(network: Classifier, names: list[str], dataset: str) -> Classifier:
    """The network, its classes in the order of the data set's. Raises UserError for other names."""
    if not (network.classes and names):
        return network
    rows = index_by_name(names, network.classes, (dataset, f"the classifier for {network.name}"))
    return network._replace(weight=network.weight[rows], bias=network.bias[rows], classes=names)


def draw(record: dict, pixels: PixelFormat, networks: list[Classifier], names: list[str]) -> tuple[SheetRow, dict]:
    """A row of cams.png, and what each network takes the image for."""

    def name_of(label: int) -> str:
        return names[label] if label < len(names) else f"class {label}"

    image = require_record(record, pixels)
    label = class_of(record)
    tiles = [fit(pixels.picture(image))]
    captions = [name_of(label)]
    taken = []
    for network in networks:
        view = TRANSFORMS[network.transform](image, network.image_size)
        features = network.backbone.map_of(view).cpu()
        taken.append(name_of(int(network.logits(features).argmax())))
        captions.append(f"classified as {taken[-1]}")
        cam = activation_map(features, network.weight[label]).numpy()
        shown = image if network.transform == "square" else view
        over = enlarge_map(cam, view.shape[:2], network.backbone.shape.stride, shown.shape[:2])
        tiles.append(fit(overlay(pixels.picture(shown), over)))
    prediction = {"file_name": record.get("file_name", ""), "truth": name_of(label), "taken_for": taken}
    return SheetRow(tiles, captions), prediction


def activation_map(features: Tensor, weight: Tensor) -> Tensor:
    """weight . features, (h, w), scaled from its least value to its greatest, 0 to 1; all 0 where it is flat.

    Features are (C, h, w), the weight (C,) is the classifier's row of the class; without bias and without ReLU.
    """
    evidence = torch.einsum("chw,c->hw", features, weight)
    low = evidence.min()
    high = evidence.max()
    return torch.zeros_like(evidence) if high == low else (evidence - low) / (high - low)


def overlay(image: np.ndarray, cam: np.ndarray) -> np.ndarray:
    """The (H, W, 3) uint8 RGB image under its (H, W) map in colours from blue (0) to red (1)."""
    colors = cv2.applyColorMap(np.round(255 * cam).astype(np.uint8), cv2.COLORMAP_JET)[..., ::-1]
    return np.round((1 - MAP_SHARE) * image + MAP_SHARE * colors).astype(np.uint8)
