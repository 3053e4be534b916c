#!/usr/bin/env python
"""`make check-cases`: small inputs after public reports, what is right for each, and what we make of it.

../shared/cases/make_cases.py writes them. Exit code 1 if one is wrong.
"""

import contextlib
import io
import json
import logging
import re
import runpy
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch
from trees import logged

from projects.LargeData.places import Folder
from projects.LargeData.shards import write_index
from projects.Pixels.grey_levels import find_bits
from revisit.config import add_revisit_config
from revisit.data.finetuning.detection_mapper import DetectionMapper
from revisit.data.sources.catalog import get_records
from revisit.data.sources.image_folders import load_folder
from revisit.engine.data_checks import inspect_evaluation, inspect_training
from revisit.engine.finetune_trainer import FinetuneTrainer, build_mapper
from revisit.errors import UserError

from detectron2.config import CfgNode, get_cfg
from detectron2.data import MetadataCatalog
from detectron2.structures import Boxes, BoxMode, Instances

ROOT = Path(__file__).resolve().parents[1]
MAKER = ROOT / "../shared/cases/make_cases.py"
# What may be seen of a case, as a pattern; each takes the whole line.
SAME_12 = r"summary 12, mapper 12, evaluator 12, AP 100\.0.*"
REFUSED = r"refused: .+"
DOUBTFUL = rf"{REFUSED}|.*warned: .*(twice|double|same|more than once).*"
RIGHT = {
    "iscrowd_null": SAME_12,
    "iscrowd_null_all": SAME_12,
    "zero_area": r"summary 11, mapper 11, evaluator 11, AP 100\.0.*",
    "rectangle_as_4_numbers": SAME_12,
    "boxes_twice": DOUBTFUL,
    "image_twice": DOUBTFUL,
    "names_twice": REFUSED,
    "names_int": rf"{REFUSED}|{SAME_12}classes 1, 2.*",
    "kaggle_rle": REFUSED,
    "dense": r"summary 300, mapper 300, evaluator 300, AP 100\.0.*",
    "masks_255": r"refused: .*255.*",
    "masks_255_names": r"refused: .*255.*",
    "pose_5x2": r"refused: .*|.*first box 55\.7, 40\.0, 74\.9, 45\.0",
    "bom": r".*classes red, blue;.*",
    "thin": r"5 listed, 4 read; refused: .*thin\.png.*",
    "latin1": r"4 listed, 4 read",
    "jfif": r"4 listed, 4 read",
    "yolo_tracks": rf"{SAME_12}warned: .*further numbers.*",
    "yolo_class_as_float": SAME_12,
    "masks_in_shares": r"refused: .*12 of 12 boxes have a mask that lies elsewhere.*",
    "masks_beside": r"refused: .*12 of 12 boxes have a mask that lies elsewhere.*",
    "mask_on_a_line": r"refused: .*6 of 12 boxes have no mask that can be drawn, such as .*",
    "mask_part_odd": r"refused: .*annotations\[0\]: .*7 numbers.*",
    "boxes_nearly_twice": r".*warned: .*12 of 24 boxes.*nearly twice.*",
    "half_in_shares": r"refused: .*6 of 12 boxes.*shares of the image.*",
    "area_of_one": r"summary 9, mapper 9, evaluator 9, AP 100\.0; warned: .*9 of 9 boxes state an area.*",
    "null_entries": r"refused: .*categories\[0\]: null.*",
    "name_with_blank": SAME_12,
    "two_annotators": r".*6 of 6 images of \S*b\.json are in DATASETS\.TRAIN \S*boxes\.json, too: they count twice.*",
    "one_empty_of_120": r".*im7\.png.*",
    "synology": "6 listed, 6 read",
    "dotted_names": "12 images",
    "tiff_4x8": r"4 listed, 0 read; refused: .*4 bands.*",
    "tiff_2x16": r"4 listed, 0 read; refused: .*2 bands.*",
    "tiff_4x16": r"4 listed, 0 read; refused: .*4 bands.*",
    "nodata_65535": r"warned: .*nearly black next to 65535.*",
}
WITH_MASKS = ("kaggle_rle", "masks_in_shares", "masks_beside", "mask_on_a_line", "mask_part_odd")


def main() -> int:
    if not MAKER.is_file():
        print(f"error: {MAKER} is not there: expected the script that writes the cases", file=sys.stderr)
        return 2
    logging.getLogger("detectron2").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        with patch.object(sys, "argv", [str(MAKER), folder]):
            runpy.run_path(str(MAKER))
        cases = json.loads((Path(folder) / "cases.json").read_text())
        verdicts = [report(Path(folder), name, right) for name, right in cases.items()]
    print(f"{verdicts.count(True)} of {len(verdicts)} cases are right")
    return int(not all(verdicts))


def report(root: Path, name: str, right: str) -> bool:
    """Print a case's row; whether it is right. A case that this script does not know, or a traceback, is wrong."""
    seen = of_case(root / name) if name in RIGHT else "no check of this case"
    is_right = re.fullmatch(RIGHT.get(name, ""), seen) is not None
    print(f"{name} | {seen.replace(str(root), '')} | {right} | {'right' if is_right else 'WRONG'}", flush=True)
    return is_right


def of_case(case: Path) -> str:
    """In one line, what is made of a case."""
    images, labels = case / "images", case / "labels"
    try:
        if case.name in CHECKS:
            return CHECKS[case.name](case)
        if (case / "boxes.json").is_file():
            most = 300 if case.name == "dense" else 100
            return of_boxes(f"coco:{images}:{case}/boxes.json", case.name in WITH_MASKS, most)
        if labels.is_dir():
            return of_boxes(f"yolo:{images}:{labels}")
        if (case / "masks").is_dir():
            return of_masks(f"masks:{images}:{case}/masks")
        return of_images(images)
    except UserError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"


def of_two_annotators(case: Path) -> str:
    names = [f"coco:{case}/images:{case}/{file}" for file in ("boxes.json", "b.json")]
    cfg = config(names[0], "DATASETS.TRAIN", tuple(names), "MODEL.ROI_HEADS.NUM_CLASSES", 2)
    return "; ".join(text for level, text in logged(inspect_training, cfg) if level == logging.WARNING)


def of_a_training(case: Path) -> str:
    cfg = config(f"yolo:{case}/images:{case}/labels", "MODEL.ROI_HEADS.NUM_CLASSES", 2)
    return "; ".join(text for level, text in logged(inspect_training, cfg) if level == logging.WARNING)


def of_tars(case: Path) -> str:
    return f"{len(write_index(Folder(case), ['0.tar']).shard)} images"


def of_a_range(case: Path) -> str:
    (_, text), *_ = logged(find_bits, load_folder(case / "images"))
    return f"warned: {text}"


CHECKS = {
    "two_annotators": of_two_annotators,
    "one_empty_of_120": of_a_training,
    "dotted_names": of_tars,
    "nodata_65535": of_a_range,
}


def config(name: str, *pairs: object) -> CfgNode:
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_list(["MODEL.DEVICE", "cpu", "DATASETS.TRAIN", (name,), "DATASETS.TEST", (name,), *pairs])
    return cfg


def of_boxes(name: str, masks: bool = False, most: int = 100) -> str:
    """Boxes as the summary, the mapper and the evaluator count them, and the AP of a detector that finds them all."""
    records = get_records(name)
    metadata = MetadataCatalog.get(name)
    cfg = config(name, "MODEL.ROI_HEADS.NUM_CLASSES", len(metadata.thing_classes), "MODEL.MASK_ON", masks)
    cfg.merge_from_list(["TEST.DETECTIONS_PER_IMAGE", most, "INPUT.MASK_FORMAT", "bitmask"])
    notes = [*logged(inspect_training, cfg), *logged(inspect_evaluation, cfg)]
    summary = next(match[1] for _, text in notes if (match := re.search(r"(\d+) box(?:es)?\b[^;]*: ", text)))
    mapper = build_mapper(cfg, is_train=True)
    mapped = sum(len(mapper(record)["instances"]) for record in records)
    with contextlib.redirect_stdout(io.StringIO()):
        evaluator = FinetuneTrainer.build_evaluator(cfg, name)
        evaluator.reset()
        for record in records:
            evaluator.process([record], [{"instances": exact(record)}])
        ap = evaluator.evaluate()["bbox"]["AP"]
    scored = sum(not annotation["iscrowd"] for annotation in evaluator._coco_api.dataset["annotations"])
    warnings = [text for level, text in notes if level == logging.WARNING]
    seen = f"summary {summary}, mapper {mapped}, evaluator {scored}, AP {ap:.1f}"
    seen += f"; warned: {warnings[0]}" if warnings else ""
    first = ", ".join(f"{value:.1f}" for value in corners(records[0])[0])
    return f"{seen}; classes {', '.join(metadata.thing_classes)}; first box {first}"


def corners(record: dict) -> list[list[float]]:
    """[x0, y0, x1, y1] px of each box."""
    return [BoxMode.convert(list(a["bbox"]), a["bbox_mode"], BoxMode.XYXY_ABS) for a in record["annotations"]]


def exact(record: dict) -> Instances:
    """The answer of a detector that finds a record's objects, as they are."""
    answer = Instances((record["height"], record["width"]))
    answer.pred_boxes = Boxes(torch.tensor(corners(record)).reshape(-1, 4))
    answer.scores = torch.ones(len(record["annotations"]))
    answer.pred_classes = torch.tensor([a["category_id"] for a in record["annotations"]], dtype=torch.int64)
    return answer


def of_masks(name: str) -> str:
    """The classes that a training on masks counts, with as many as there are."""
    get_records(name)
    count = len(MetadataCatalog.get(name).stuff_classes)
    cfg = config(name, "MODEL.META_ARCHITECTURE", "SemanticSegmentor", "MODEL.SEM_SEG_HEAD.NUM_CLASSES", count)
    return "; ".join(text for _, text in [*logged(inspect_training, cfg), *logged(inspect_evaluation, cfg)])


def of_images(folder: Path) -> str:
    """How many images of a folder are listed, and read for a detector, and what is said of the first of the others."""
    records, refusals = load_folder(folder), []
    mapper = DetectionMapper(config(f"folder:{folder}", "INPUT.MAX_SIZE_TEST", 640), is_train=False)
    for record in records:
        try:
            mapper(record)
        except UserError as error:
            refusals.append(str(error))
    seen = f"{len(records)} listed, {len(records) - len(refusals)} read"
    return seen + (f"; refused: {refusals[0]}" if refusals else "")


if __name__ == "__main__":
    sys.exit(main())
