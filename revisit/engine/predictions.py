"""What a finetuned model makes of the images of a data set, as rows of a sheet: input, truth, prediction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from revisit.checkpoint.checkpointer import WholeModelCheckpointer
from revisit.data.catalog import get_records
from revisit.data.labels import check_size, read_depth, read_labels
from revisit.data.mapper import read_record
from revisit.data.reader import UnreadableImageError
from revisit.engine.config_checks import check_records
from revisit.engine.finetune_trainer import build_mapper
from revisit.errors import UserError
from revisit.viz.prediction_sheet import Detections, Row, class_colors, depth_row, detection_row, segmentation_row

from detectron2.config import CfgNode
from detectron2.data import Metadata, MetadataCatalog
from detectron2.data.detection_utils import annotations_to_instances
from detectron2.modeling import build_model

Predict = Callable[[dict], dict]


def build_predictor(cfg: CfgNode) -> Predict:
    """Record -> what the model of MODEL.WEIGHTS puts out for it."""
    model, mapper = build_model(cfg).eval(), build_mapper(cfg, is_train=False)
    WholeModelCheckpointer(model, cfg).resume_or_load(cfg.MODEL.WEIGHTS, resume=False)

    @torch.no_grad()
    def predict(record: dict) -> dict:
        return model([mapper(record)])[0]

    return predict


def draw_detection(record: dict, image: np.ndarray, metadata: Metadata, predict: Predict | None) -> Row:
    found = None
    if predict:
        instances = predict(record)["instances"].to("cpu")
        found = Detections(
            instances.pred_boxes.tensor.numpy(),
            instances.pred_classes.numpy(),
            instances.scores.numpy(),
            instances.pred_masks.numpy() if instances.has("pred_masks") else None,
        )
    instances = annotations_to_instances(record["annotations"], image.shape[:2], mask_format="bitmask")
    masks = instances.gt_masks.tensor.numpy() if instances.has("gt_masks") else None
    truth = Detections(instances.gt_boxes.tensor.numpy(), instances.gt_classes.numpy(), masks=masks)
    return detection_row(record["file_name"], image, metadata.thing_classes, truth, found)


def draw_segmentation(record: dict, image: np.ndarray, metadata: Metadata, predict: Predict | None) -> Row:
    names = metadata.stuff_classes
    truth = read_labels(record["sem_seg_file_name"], len(names), metadata.get("label_offset", 0))
    check_size(record["sem_seg_file_name"], truth, record["file_name"], image.shape[:2])
    found = predict(record)["sem_seg"].argmax(dim=0).cpu().numpy() if predict else None
    return segmentation_row(record["file_name"], image, names, class_colors(names), truth, found)


def draw_depth(record: dict, image: np.ndarray, metadata: Metadata, predict: Predict | None) -> Row:
    truth = read_depth(record["depth_file_name"])
    check_size(record["depth_file_name"], truth, record["file_name"], image.shape[:2])
    found = predict(record)["depth"].float().cpu().numpy() if predict else None
    return depth_row(record["file_name"], image, truth, found)


# By meta-architecture: how a record is drawn, and what stands above the truth.
TASKS = {
    "GeneralizedRCNN": (draw_detection, "truth"),
    "SemanticSegmentor": (draw_segmentation, "truth"),
    "DepthEstimator": (draw_depth, "truth (black: missing)"),
}


def make_rows(cfg: CfgNode, dataset: str, num_images: int, truth_only: bool) -> list[Row]:
    """A row for each of ``num_images`` images, spread over the data set."""
    draw, _ = TASKS[cfg.MODEL.META_ARCHITECTURE]
    records, metadata = get_records(dataset), MetadataCatalog.get(dataset)
    check_records(cfg, dataset, records)
    predict = None if truth_only else build_predictor(cfg)
    rows = []
    for index in np.linspace(0, len(records) - 1, min(num_images, len(records))).astype(int):
        try:
            image = read_record(records[index])
        except UnreadableImageError as error:
            raise UserError(f"an image of {dataset} cannot be read: {error}") from error
        rows.append(draw(records[index], image, metadata, predict))
    return rows
