"""What a data set's boxes count for where they are summed up, learned from and scored."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import torch
from trees import logged

from revisit.config import add_revisit_config
from revisit.data.sources.catalog import get_records
from revisit.data.sources.inspection import inspect
from revisit.engine.finetune_trainer import FinetuneTrainer, build_mapper

from detectron2.config import CfgNode, get_cfg
from detectron2.data import MetadataCatalog
from detectron2.structures import Boxes, BoxMode, Instances


def exact(record: dict, *, masks: bool = False) -> dict:
    """What a detector finds that is always right: all boxes of a record, with masks of the whole image."""
    boxes = [box for box in record["annotations"] if not box.get("iscrowd", 0)]
    corners = [BoxMode.convert(list(box["bbox"]), box["bbox_mode"], BoxMode.XYXY_ABS) for box in boxes]
    found = Instances((record["height"], record["width"]))
    found.pred_boxes = Boxes(torch.tensor(corners, dtype=torch.float32).reshape(-1, 4))
    found.scores = torch.ones(len(corners))
    found.pred_classes = torch.tensor([box["category_id"] for box in boxes], dtype=torch.int64)
    if masks:
        found.pred_masks = torch.ones(len(corners), record["height"], record["width"], dtype=torch.bool)
    return {"instances": found}


def evaluate_exact(cfg: CfgNode, name: str) -> tuple[object, dict]:
    """The evaluator of a data set, and the scores of a detector that is always right."""
    evaluator = FinetuneTrainer.build_evaluator(cfg, name)
    evaluator.reset()
    for record in get_records(name):
        evaluator.process([record], [exact(record, masks=cfg.MODEL.MASK_ON)])
    with redirect_stdout(io.StringIO()):
        return evaluator, evaluator.evaluate()


def counted(cfg: CfgNode, name: str, output: Path) -> tuple[int, int, int, float]:
    """Boxes of a data set by its summary, its mapper and its evaluator, and the AP of a detector that is right."""
    cfg = cfg.clone()
    cfg.defrost()
    cfg.OUTPUT_DIR = str(output)
    (_, line), *_ = logged(inspect, cfg, name, to_learn=True)
    records = get_records(name)
    mapper = build_mapper(cfg, is_train=True)
    learned = sum(len(mapper(record)["instances"]) for record in records)
    evaluator, scores = evaluate_exact(cfg, name)
    truth = evaluator._coco_api.dataset.get("annotations", [])
    scored = sum(not annotation["iscrowd"] for annotation in truth)
    return int(re.search(r"(\d+) boxes", line)[1]), learned, scored, scores.get("bbox", {}).get("AP", 100.0)


def inspected(name: str, *, to_learn: bool) -> None:
    """Inspect boxes for a detector of as many classes as the data set has."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    get_records(name)
    count = len(MetadataCatalog.get(name).thing_classes)
    cfg.merge_from_list(["MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "MODEL.ROI_HEADS.NUM_CLASSES", count])
    inspect(cfg, name, to_learn=to_learn)
