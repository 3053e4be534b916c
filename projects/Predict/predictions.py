"""Draw what a finetuned model predicts for the images of a data set: a row of input, truth and prediction each."""

import logging
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

from projects.Pictures.prediction_sheet import depth_row, draw_objects, segmentation_row
from projects.Pictures.tiles import SheetRow, fit
from revisit.boxes.boxes import Boxes
from revisit.checkpoint.checkpointer import WholeModelCheckpointer
from revisit.checkpoint.run_folder import trained_network
from revisit.data.finetuning.detection_mapper import expect_size
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.image_bytes import PADDED, WINDOW
from revisit.data.images.reader import part_in_words
from revisit.data.sources.catalog import get_records
from revisit.data.sources.class_names import names_or_numbers
from revisit.data.sources.inspection import check_records, num_classes
from revisit.data.sources.labels import check_size, read_depth, read_labels
from revisit.data.sources.records import Records, sample
from revisit.data.sources.subsets import is_labelled
from revisit.engine.command import pairs_of
from revisit.engine.data_checks import follow_class_names
from revisit.engine.finetune_trainer import build_mapper
from revisit.engine.setup import make_config
from revisit.errors import expect
from revisit.evaluation.pixel_evaluators import predicted_classes
from revisit.keys import DETECTORS, Facts, resolve_auto_values

from detectron2.config import CfgNode
from detectron2.data import Metadata, MetadataCatalog
from detectron2.data.detection_utils import annotations_to_instances
from detectron2.modeling import build_model

LOOKED_AT = 0.5  # score of objects that are worth a look, where a command says no other
Predict = Callable[[], dict]  # what a model predicts for an image

logger = logging.getLogger(__name__)


def load_finetuned(cfg: CfgNode) -> tuple[nn.Module, list[str]]:
    """The model of MODEL.WEIGHTS in evaluation mode, and its classes: by its checkpoint, else ``class 0`` and so on."""
    model = build_model(cfg).eval()
    saved = WholeModelCheckpointer(model, cfg).resume_or_load(cfg.MODEL.WEIGHTS, resume=False)
    count, names = num_classes(cfg) or 0, saved.get("classes", [])
    return model, names_or_numbers(names, count)


class Predictor:
    """The finetuned model of MODEL.WEIGHTS, and what turns an image into its input."""

    def __init__(self, cfg: CfgNode):
        self._model, self.class_names = load_finetuned(cfg)
        mapper = build_mapper(cfg, is_train=False)
        self.read, self._map, self.pixels = mapper.read, mapper, pixel_format(cfg)

    @torch.no_grad()
    def __call__(self, record: dict, pixels: np.ndarray) -> dict:
        """What the model predicts for a record whose (H, W, C) uint8 pixels ``read`` has read."""
        return self._model([self._map(record, pixels)])[0]


def finetuned_config(args: Namespace) -> CfgNode:
    """The config of a command with ``add_network_options``: its checkpoint's, under what it says of the test."""
    weights = ["MODEL.WEIGHTS", args.weights] if args.weights else []
    cfg = make_config(args.config_file, [*weights, *args.opts], trained=True)
    kind, way_out = cfg.MODEL.META_ARCHITECTURE, "tools/train_net.py --dry-run draws the views of a pretraining"
    expect(kind in TASKS, f"MODEL.META_ARCHITECTURE {kind} predicts nothing: expected one of {list(TASKS)}; {way_out}")
    return cfg


def heads_of(cfg: CfgNode) -> CfgNode:
    """The node of a detector's score threshold."""
    return cfg.MODEL.RETINANET if cfg.MODEL.META_ARCHITECTURE == "RetinaNet" else cfg.MODEL.ROI_HEADS


def set_score_threshold(cfg: CfgNode, args: Namespace) -> float:
    """Let detectors find objects that score at least --score-threshold, in place; returns it. Warns where it means
    nothing."""
    heads = heads_of(cfg)
    if args.score_threshold is not None:
        expect(0 <= args.score_threshold <= 1, f"--score-threshold {args.score_threshold:g}: expected 0 to 1")
        kind = cfg.MODEL.META_ARCHITECTURE
        if kind not in DETECTORS:
            logger.warning(f"--score-threshold {args.score_threshold:g} changes nothing: {kind} finds no objects")
        heads.SCORE_THRESH_TEST = args.score_threshold
    elif not any(key.endswith(".SCORE_THRESH_TEST") for key in pairs_of(args.opts)):
        heads.SCORE_THRESH_TEST = LOOKED_AT
    return heads.SCORE_THRESH_TEST


def draw_detection(record: dict, image: np.ndarray, metadata: Metadata, predict: Predict | None) -> SheetRow:
    """A row of boxes, and of masks where all of them have one."""
    expect_size({**record}, image)
    boxes = record["annotations"]
    if not all("segmentation" in box for box in boxes):
        boxes = [{key: value for key, value in box.items() if key != "segmentation"} for box in boxes]
    height, width = image.shape[:2]
    objects = [Boxes.of_instances(annotations_to_instances(boxes, (height, width), mask_format="bitmask"))]
    if predict:
        objects.append(_in_image(Boxes.of_instances(predict()["instances"]), height, width))
    drawn = [draw_objects(image, each, metadata.thing_classes) for each in objects]
    tiles = [fit(image), *drawn]
    return SheetRow(tiles, [part_in_words(record)])


def _in_image(objects: Boxes, height: int, width: int) -> Boxes:
    """Those that a detector has not found in what was padded."""
    seen = objects[(objects.xyxy[:, :2] < (width, height)).all(axis=1)]
    return seen if seen.masks is None else replace(seen, masks=seen.masks[:, :height, :width])


def draw_segmentation(record: dict, image: np.ndarray, metadata: Metadata, predict: Predict | None) -> SheetRow:
    """A row of the class of each pixel."""
    names = metadata.stuff_classes
    offset, window = metadata.get("label_offset", 0), record.get(WINDOW)
    maps = [read_labels(record["sem_seg_file_name"], len(names), offset, window)]
    check_size(record["sem_seg_file_name"], maps[0], record["file_name"], image.shape[:2])
    if predict:
        maps.append(predicted_classes(_unpadded(predict()["sem_seg"], record), maps[0].shape))
    return segmentation_row(part_in_words(record), image, names, *maps)


def draw_depth(record: dict, image: np.ndarray, metadata: Metadata, predict: Predict | None) -> SheetRow:
    """A row of the depth of each pixel."""
    maps = [read_depth(record["depth_file_name"], record.get(WINDOW))]
    check_size(record["depth_file_name"], maps[0], record["file_name"], image.shape[:2])
    if predict:
        maps.append(_unpadded(predict()["depth"], record).float().cpu().numpy())
    return depth_row(part_in_words(record), image, *maps)


def _unpadded(values: torch.Tensor, record: dict) -> torch.Tensor:
    """Of (..., H, W) in a window that was filled up, what is of the image."""
    return values[..., : record["height"], : record["width"]] if PADDED in record else values


# By meta-architecture: how a record is drawn, and the header of the truth.
TASKS = {
    **dict.fromkeys(DETECTORS, (draw_detection, "truth")),
    "SemanticSegmentor": (draw_segmentation, "truth"),
    "DepthEstimator": (draw_depth, "truth (black: missing)"),
}


def read_test_set(cfg: CfgNode, dataset: str, *, truth_only: bool = False) -> Records:
    """The records of a data set with labels, classes counted as the network does; ``cfg`` follows it, in place."""
    if not truth_only:
        cfg.DATASETS.TEST = (dataset,)
        follow_class_names(cfg, trained_network(cfg))
    records = get_records(dataset)
    if truth_only and not cfg.DATASETS.TRAIN:
        cfg.DATASETS.TRAIN = (dataset,)
        resolve_auto_values(cfg, Facts())  # the number of classes, where the recipe leaves it open
    check_records(cfg, dataset, records)
    resolve_auto_values(cfg, Facts(records=records))
    return records


def make_rows(cfg: CfgNode, dataset: str, num_images: int, truth_only: bool) -> list[SheetRow]:
    """A row for each of ``num_images`` images, spread over the data set, whose classes the model knows by name; of
    windows of larger images those that a detector learns from."""
    draw, _ = TASKS[cfg.MODEL.META_ARCHITECTURE]
    records = read_test_set(cfg, dataset, truth_only=truth_only)
    records = [record for record in records if WINDOW not in record or is_labelled(record)] or records
    metadata = MetadataCatalog.get(dataset)
    predictor, mapper = None if truth_only else Predictor(cfg), build_mapper(cfg, is_train=False)
    rows, shown = [], pixel_format(cfg)
    for record in sample(records, num_images):
        pixels = mapper.read(record)
        predict = partial(predictor, record, pixels) if predictor else None
        rows.append(draw(record, shown.picture(pixels), metadata, predict))
    return rows
