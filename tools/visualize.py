#!/usr/bin/env python
"""Draw what a finetuned model makes of a data set: input, truth and prediction side by side.

    python tools/visualize.py --config-file configs/toy/detection.yaml --output output/sheets \\
        MODEL.WEIGHTS output/toy/detection/model_final.pth

Works for detection (boxes), semantic segmentation (classes, void left unpainted) and depth (metres), as
MODEL.META_ARCHITECTURE says. The images are spread evenly over the data set, the same ones in every call.

To check a new data set by eye, without any model:

    python tools/visualize.py --config-file configs/detection/voc_faster_rcnn_R50_C5.yaml --truth-only \\
        --dataset voc:/data/my_boxes:trainval --output output/sheets
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.config import PRETRAINING
from revisit.data.catalog import get_records
from revisit.data.images import UnreadableImageError
from revisit.data.labels import check_size, read_depth, read_labels
from revisit.data.mapper import read_record
from revisit.engine.checks import check_records
from revisit.engine.command import natural, run_command
from revisit.engine.finetune import build_mapper
from revisit.engine.setup import load_config
from revisit.errors import UserError
from revisit.evaluation.sheets import (
    Detections,
    Row,
    class_colors,
    depth_row,
    detection_row,
    save_sheet,
    segmentation_row,
)

from detectron2.config import CfgNode
from detectron2.data import Metadata, MetadataCatalog
from detectron2.data.detection_utils import annotations_to_instances
from detectron2.modeling import build_model

Predict = Callable[[dict], dict]


class FinetunedCheckpointer(RevisitCheckpointer):
    """Refuses weights without a value for the heads: what is drawn must have been trained."""

    def _load_model(self, checkpoint: dict) -> object:
        incompatible = super()._load_model(checkpoint)
        if incompatible.missing_keys:
            raise UserError(
                f"MODEL.WEIGHTS {self._path} lacks {len(incompatible.missing_keys)} tensors of this model, the first "
                f"{incompatible.missing_keys[0]}: expected a finetuned model of this config, such as model_final.pth "
                "of tools/train_net.py"
            )
        return incompatible


def build_predictor(cfg: CfgNode) -> Predict:
    """Record -> what the model of MODEL.WEIGHTS puts out for it."""
    if not cfg.MODEL.WEIGHTS:
        raise UserError(
            "no weights to predict with: end the command by MODEL.WEIGHTS output/x/model_final.pth, "
            "or draw the data alone by --truth-only"
        )
    model, mapper = build_model(cfg).eval(), build_mapper(cfg, is_train=False)
    FinetunedCheckpointer(model, cfg).resume_or_load(cfg.MODEL.WEIGHTS, resume=False)

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


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--config-file", required=True, metavar="FILE", help="of the finetuned model, as for tools/train_net.py")
    add("--output", required=True, type=Path, metavar="DIR", help="folder for the sheets, made if there is none")
    add("--dataset", metavar="NAME", help="draw this one (default: the first of DATASETS.TEST)")
    add("--num-images", type=natural, default=8, metavar="N", help="images in all (default: %(default)s)")
    add("--rows", type=natural, default=4, metavar="N", help="images a sheet (default: %(default)s)")
    add("--truth-only", action="store_true", help="draw input and truth without any model")
    add(
        "--score-threshold",
        type=float,
        default=0.5,
        metavar="S",
        help="detection: draw boxes that score at least this, 0 to 1 (default: %(default)s)",
    )
    add("opts", nargs=argparse.REMAINDER, metavar="KEY VALUE", help="config overrides: MODEL.WEIGHTS FILE and others")
    parser.set_defaults(num_gpus=1, num_machines=1, resume=False)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    cfg = load_config(args)
    if cfg.MODEL.META_ARCHITECTURE not in TASKS:
        what = "pretrains, so it has" if cfg.MODEL.META_ARCHITECTURE in PRETRAINING else "has"
        raise UserError(
            f"{args.config_file} {what} no prediction to draw (MODEL.META_ARCHITECTURE {cfg.MODEL.META_ARCHITECTURE}): "
            f"expected one of {', '.join(TASKS)}; tools/train_net.py --dry-run draws the views of pretraining"
        )
    if not args.dataset and not cfg.DATASETS.TEST:
        raise UserError("no data to draw: give --dataset NAME, or set DATASETS.TEST")
    dataset = args.dataset or cfg.DATASETS.TEST[0]
    cfg.MODEL.ROI_HEADS.SCORE_THRESH_TEST = args.score_threshold
    rows = make_rows(cfg, dataset, args.num_images, args.truth_only)
    headers = ["input", TASKS[cfg.MODEL.META_ARCHITECTURE][1], "prediction"][: len(rows[0].panels)]
    subtitle = "truth only" if args.truth_only else f"weights {cfg.MODEL.WEIGHTS}"
    if headers[-1] == "prediction" and cfg.MODEL.META_ARCHITECTURE == "GeneralizedRCNN":
        headers[-1] = f"prediction (scores from {args.score_threshold:g} on)"
    try:
        args.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {args.output} cannot be made ({error.strerror}): expected a folder") from error
    for page, start in enumerate(range(0, len(rows), args.rows), start=1):
        path = args.output / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', dataset)}_{page:02d}.png"
        save_sheet(path, rows[start : start + args.rows], headers, dataset, subtitle)
        print(path)


if __name__ == "__main__":
    run_command(main)
