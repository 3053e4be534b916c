"""A detector of found boxes: DropLoss against loops in float64, what starts from it, scores without classes."""

import json
import logging
import math
import re
from pathlib import Path

import pytest
import torch
from commands import one_line_error, run
from labels import exact
from trees import blank_image, refusal, refused

from projects.Discover.scores import class_agnostic_scores
from projects.Discover.self_labels import Detected, merged, self_labelled, without_labelled
from revisit import model_zoo
from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.data.sources.catalog import get_records
from revisit.data.sources.inspection import inspect
from revisit.data.sources.records import NOT_SCORED
from revisit.engine.data_checks import inspect_training
from revisit.engine.finetune_trainer import FinetuneTrainer
from revisit.engine.same_experiment import plain_config
from revisit.keys import with_values

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_model, build_roi_heads
from detectron2.modeling.box_regression import Box2BoxTransform
from detectron2.structures import Boxes, BoxMode, Instances
from detectron2.utils.events import EventStorage

SIZE = (128, 128)
FOUND = [[10.0, 10, 50, 50], [70, 60, 110, 120]]  # x0, y0, x1, y1 in px
NEAR = [[12.0, 8, 52, 48], [72, 64, 108, 118], [30, 30, 90, 90], [10, 10, 50, 14]]  # two objects, two backgrounds
FAR = [[0.0, 80, 40, 127], [100, 2, 126, 40], [48, 48, 71, 61]]  # the last one touches both by less than 0.01 IoU
STRIDES = (4, 8, 16, 32)
NARROW = {
    "MODEL.DEVICE": "cpu",
    "MODEL.BACKBONE.NAME": "build_revisit_fpn_backbone",
    "MODEL.WEIGHTS": "",
    "MODEL.RESNETS.STEM_OUT_CHANNELS": 8,
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 8,
    "MODEL.RESNETS.NORM": "BN",
    "MODEL.FPN.NORM": "BN",
    "MODEL.FPN.OUT_CHANNELS": 8,
    "MODEL.ROI_BOX_HEAD.FC_DIM": 16,
    "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": 2,
    "MODEL.ROI_MASK_HEAD.CONV_DIM": 8,
    "MODEL.ROI_HEADS.NUM_CLASSES": 1,
}


def recipe(**options: object) -> CfgNode:
    return with_values(model_zoo.get_config("own_images/boxes.yaml"), NARROW | options)


def heads_and_maps(**options: object) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The recipe's RoI heads, and the maps of a pyramid of noise."""
    cfg = recipe(**options)
    shapes = {f"p{n}": ShapeSpec(channels=8, stride=stride) for n, stride in enumerate(STRIDES, start=2)}
    torch.manual_seed(0)
    heads = build_roi_heads(cfg, shapes)
    for parameter in heads.box_predictor.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    maps = {f"p{n}": torch.randn(1, 8, 128 // stride, 128 // stride) for n, stride in enumerate(STRIDES, start=2)}
    return heads, maps


def losses(heads: torch.nn.Module, maps: dict[str, torch.Tensor], regions: list[list[float]]) -> dict[str, float]:
    proposals, truth = Instances(SIZE), Instances(SIZE)
    proposals.proposal_boxes = Boxes(torch.tensor(regions))
    proposals.objectness_logits = torch.zeros(len(regions))
    truth.gt_boxes, truth.gt_classes = Boxes(torch.tensor(FOUND)), torch.zeros(len(FOUND), dtype=torch.int64)
    with EventStorage():
        _, found = heads(None, maps, [proposals], [truth])
    return {name: value.item() for name, value in found.items()}


def iou(one: list[float], other: list[float]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return shared / (sum(areas) - shared)


def test_drop_loss_is_that_of_a_loop_over_regions():
    """Found boxes themselves are regions, too: Detectron2 appends them."""
    heads, maps = heads_and_maps()
    regions = NEAR + FAR + FOUND
    pooled = heads.box_pooler(list(maps.values()), [Boxes(torch.tensor(regions))])
    logits, deltas = heads.box_predictor(heads.box_head(pooled))
    transform = Box2BoxTransform(weights=(10.0, 10.0, 5.0, 5.0))
    of_class, of_box, counted = 0.0, 0.0, 0
    for number, region in enumerate(regions):
        overlaps = [iou(region, box) for box in FOUND]
        if max(overlaps) < 0.01:
            continue
        counted += 1
        is_object = max(overlaps) >= 0.5
        scores = logits[number].double().tolist()
        total = sum(math.exp(score) for score in scores)
        of_class -= math.log(math.exp(scores[0 if is_object else 1]) / total)
        if is_object:
            box = FOUND[overlaps.index(max(overlaps))]
            target = transform.get_deltas(torch.tensor([region]), torch.tensor([box]))[0]
            of_box += (deltas[number].double() - target.double()).abs().sum().item()
    assert counted == len(NEAR) + len(FOUND)
    expected = {"loss_cls": of_class / counted, "loss_box_reg": of_box / counted}
    assert losses(heads, maps, NEAR + FAR) == pytest.approx(expected, rel=1e-5)


def test_regions_that_overlap_no_found_box_change_nothing():
    heads, maps = heads_and_maps()
    assert losses(heads, maps, NEAR + FAR) == pytest.approx(losses(heads, maps, NEAR), rel=1e-5)  # another order
    detectron2s = {"MODEL.ROI_HEADS.IOU_THRESHOLDS": [0.5], "MODEL.ROI_HEADS.IOU_LABELS": [0, 1]}
    heads, maps = heads_and_maps(**detectron2s)
    assert losses(heads, maps, NEAR + FAR) != pytest.approx(losses(heads, maps, NEAR))


def test_what_has_learned_found_boxes_starts_a_detector_of_other_classes_rpn_and_all(toy_datasets, tmp_path, caplog):
    found = recipe(OUTPUT_DIR=str(tmp_path), **{"MODEL.MASK_ON": True, "DATASETS.TRAIN": ()})
    model = build_model(found)
    RevisitCheckpointer(model, found).save("model_final", classes=["object"])
    get_records("toy_coco_train")  # which tells its ten classes
    other = with_values(found, {"MODEL.ROI_HEADS.NUM_CLASSES": 10, "DATASETS.TRAIN": ("toy_coco_train",)})
    torch.manual_seed(1)
    started = build_model(other)
    with caplog.at_level(logging.INFO):
        RevisitCheckpointer(started, other).resume_or_load(str(tmp_path / "model_final.pth"), resume=False)
    ours, theirs = started.state_dict(), model.state_dict()
    new = {key for key in ours if ours[key].shape != theirs[key].shape or not torch.equal(ours[key], theirs[key])}
    assert {key.rpartition(".")[0] for key in new} <= {
        "roi_heads.box_predictor.cls_score",
        "roi_heads.box_predictor.bbox_pred",
        "roi_heads.mask_head.predictor",
    }
    log = caplog.text
    assert "model_final.pth knows other classes than this data: predictors of classes start from random" in log
    assert "proposal_generator 6 of 6, roi_heads.box_head 4 of 4, roi_heads.box_predictor 0 of 4" in log
    assert "roi_heads.mask_head 6 of 8; new: roi_heads.box_predictor" in log


def write_boxes(folder, boxes: dict[str, list], classes: tuple[str, ...] = ("cat", "dog")) -> str:
    """Images of 50 x 100 px with boxes (class, x, y, w, h), as the name of a data set."""
    images, annotations = [], []
    for number, (name, of_image) in enumerate(boxes.items(), start=1):
        blank_image(folder / "photos" / name)
        images.append({"id": number, "file_name": name, "height": 50, "width": 100})
        for class_id, *box in of_image:
            identity = {"id": len(annotations) + 1, "image_id": number, "category_id": class_id}
            annotations.append({**identity, "bbox": box, "iscrowd": 0})
    categories = [{"id": number, "name": name} for number, name in enumerate(classes, start=1)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "boxes.json").write_text(json.dumps(content))
    return f"coco:{folder}/photos:{folder}/boxes.json"


CATS_AND_DOGS = {"a.png": [(1, 5, 5, 20, 20), (2, 50, 10, 30, 30)], "b.png": [(2, 10, 10, 40, 30)]}


def test_boxes_of_any_classes_are_those_of_one(tmp_path):
    name = write_boxes(tmp_path, CATS_AND_DOGS)
    records = get_records(f"class_agnostic:{name}")
    assert [[box["category_id"] for box in record["annotations"]] for record in records] == [[0, 0], [0]]
    assert [box["category_id"] for box in get_records(name)[0]["annotations"]] == [0, 1]
    cfg = recipe(OUTPUT_DIR=str(tmp_path))
    evaluator = FinetuneTrainer.build_evaluator(cfg, f"class_agnostic:{name}")
    evaluator.reset()
    for record in records:
        evaluator.process([record], [exact(record)])
    assert evaluator.evaluate()["bbox"]["AP50"] == pytest.approx(100)
    refused("has no boxes", get_records, f"class_agnostic:folder:{tmp_path}/photos")


def test_boxes_of_windows_are_of_one_class_before_they_are_cut(tmp_path):
    """Windows have no score of their own: a test of class_agnostic:tiles: is refused before it begins."""
    name = write_boxes(tmp_path, CATS_AND_DOGS)
    windows = f"class_agnostic:tiles:64:{name}"
    assert {box["category_id"] for record in get_records(windows) for box in record["annotations"]} == {0}
    refused("expected all windows of a data set, tiles:64:NAME", inspect, recipe(), windows, to_learn=False)


@pytest.mark.parametrize("with_crowd", ["", "iscrowd", NOT_SCORED])
def test_scores_without_classes_are_those_computed_by_hand(with_crowd):
    """By score: hit, miss, hit, a second hit of one object (a miss). What lies in a crowd counts neither way."""

    def drawn(*box: float, **marks: int) -> dict:
        return {"bbox": box, "bbox_mode": BoxMode.XYXY_ABS, "iscrowd": 0, "category_id": 3, **marks}

    crowd = [drawn(200, 200, 300, 300, **{with_crowd: 1})] if with_crowd else []
    in_crowd = [{"bbox": [210, 210, 30, 30], "score": 0.95}] if with_crowd else []
    hits = [{"bbox": [8, 8, 32, 32], "score": 0.9}, {"bbox": [9, 8, 32, 32], "score": 0.6}]
    images = [
        {"annotations": [drawn(8, 8, 40, 40), *crowd], "objects": hits + in_crowd},
        {"annotations": [drawn(60, 8, 90, 40)], "objects": [{"bbox": [0, 60, 9, 9], "score": 0.8}]},
        {"annotations": [drawn(8, 60, 40, 90)], "objects": [{"bbox": [8, 60, 32, 30], "score": 0.7}]},
    ]
    # At the recalls 0, 0.01, ..., 1: precision 1 up to 1/3, 2/3 up to 2/3, then 0.
    expected = {"AP50": 100 * (34 + 33 * 2 / 3) / 101, "recall50": 200 / 3}
    assert class_agnostic_scores(images) == pytest.approx(expected)
    nothing = [{**image, "objects": []} for image in images]
    assert class_agnostic_scores(nothing) == {"AP50": 0, "recall50": 0}


def test_a_found_box_gives_way_to_the_detectors_own():
    known = [{"bbox": [0, 0, 10, 10]}, {"bbox": [20, 0, 10, 10]}, {"bbox": [0, 0, 10, 12], "iscrowd": 1}]
    detected = [{"bbox": [1, 0, 10, 10], "score": 0.9}, {"bbox": [20, 0, 10, 5], "score": 0.8}]  # IoU 0.82, 0.5
    assert merged(known, detected) == [*detected, *known[1:]]
    assert merged(known, []) == known and merged([], detected) == detected


@pytest.fixture
def detector(tmp_path):
    """A checkpoint of the recipe with random weights, whose scores are all about 0.5."""
    return write_detector(tmp_path)


def write_detector(tmp_path: Path, **keys: object) -> Path:
    few = {"MODEL.MASK_ON": True, "DATASETS.TRAIN": (), "TEST.DETECTIONS_PER_IMAGE": 5}
    cfg = recipe(OUTPUT_DIR=str(tmp_path), **few, **keys)
    torch.manual_seed(0)
    checkpointer = RevisitCheckpointer(build_model(cfg), cfg)
    checkpointer.save("model_final", iteration=9, trainer={"config": plain_config(cfg)}, classes=["object"])
    return tmp_path / "model_final.pth"


def test_a_detector_labels_images_for_the_next_round(detector, tmp_path):
    name = write_boxes(tmp_path, {"a.png": [(1, 5, 5, 20, 20)], "b.png": []}, classes=("object",))
    command = f"python tools/self_label.py --weights {detector} --data {name} --output {tmp_path}/out"
    text = run(f"{command} --score-threshold 0.1", tmp_path)
    assert "in 2 of 2 images" in text
    content = json.loads((tmp_path / "out/data_set.json").read_text())
    assert content["categories"] == [{"id": 1, "name": "object"}]
    own = [each for each in content["annotations"] if "score" in each]
    assert own and all(each["score"] >= 0.1 and each["category_id"] == 1 for each in own)
    assert f"{len(content['annotations'])} boxes in 2 of 2 images, {len(own)} of them of the detector" in text
    records = get_records(re.search(r"learns them as (\S+)", text)[1])
    assert sum(len(record["annotations"]) for record in records)
    assert "no box scores 1 in 2 of 2 images" in one_line_error(f"{command} --score-threshold 1.0", tmp_path)
    assert "in 2 of 2 images" in run(f"{command} --score-threshold 0.2", tmp_path)  # nobody has changed what is there
    write_boxes(tmp_path, {"a.png": [(1, 5, 5, 20, 20)]}, classes=("auk",))
    assert f"only {detector} has object" in one_line_error(f"{command} --score-threshold 0.1", tmp_path)
    path = tmp_path / "out/data_set.json"
    content["annotations"].pop()
    path.write_text(json.dumps(content))
    line = one_line_error(f"{command} --score-threshold 0.1", tmp_path)
    assert f"{path} has been changed since it was written" in line and json.loads(path.read_text()) == content


def test_a_detector_that_sees_windows_labels_whole_images(tmp_path):
    small = dict.fromkeys(("INPUT.MIN_SIZE_TEST", "INPUT.MAX_SIZE_TEST"), 32)
    detector = write_detector(tmp_path, **{"INPUT.TILES": "32+8", **small})
    name = write_boxes(tmp_path, {"a.png": [(1, 5, 5, 20, 20)], "b.png": []}, classes=("object",))
    command = f"python tools/self_label.py --weights {detector} --score-threshold 0.1 --output {tmp_path}/out --data"
    message = one_line_error(f"{command} tiles:64:{name}", tmp_path)
    assert "the network sees tiles of INPUT.TILES 32+8, not 64" in message
    assert "in 2 of 2 images" in run(f"{command} {name}", tmp_path)
    by_flag = json.loads((tmp_path / "out/data_set.json").read_text())
    sizes = [(Path(image["file_name"]).name, image["height"], image["width"]) for image in by_flag["images"]]
    assert sizes == [("a.png", 50, 100), ("b.png", 50, 100)]
    own = [each for each in by_flag["annotations"] if "score" in each]
    assert len(own) > 2 * 5 and max(x + width for x, _, width, _ in (each["bbox"] for each in own)) > 40
    assert all(each["segmentation"]["size"] == [50, 100] for each in own)
    text = run(f"{command} tiles:32+8:{name}", tmp_path)
    assert json.loads((tmp_path / "out/data_set.json").read_text()) == by_flag
    records = get_records(re.search(r"learns them as (\S+)", text)[1])
    assert len(records) == 2


def test_images_that_somebody_labelled_can_be_left_out(detector, tmp_path):
    name = write_boxes(tmp_path, {"a.png": [(1, 5, 5, 20, 20)], "b.png": [], "c.png": []}, classes=("object",))
    command = f"python tools/self_label.py --weights {detector} --data {name} --score-threshold 0.1"
    content = json.loads((tmp_path / "boxes.json").read_text())
    content["images"].pop()
    (tmp_path / "labelled.json").write_text(json.dumps(content))
    labelled = f"coco:{tmp_path}/photos:{tmp_path}/labelled.json"
    text = run(f"{command} --labelled {labelled} --output {tmp_path}/out", tmp_path)
    assert "2 of 3 images are labelled in" in text and "in 1 of 1 images" in text  # b.png was found empty
    content = json.loads((tmp_path / "out/data_set.json").read_text())
    assert [Path(image["file_name"]).name for image in content["images"]] == ["c.png"]
    assert all(box["area"] > 0 for box in content["annotations"])


@pytest.mark.parametrize("count", [0, 1])
def test_an_image_in_which_objects_are_found_is_no_longer_without_labels(count):
    record = {"file_name": "a.png", "annotations": [], "without_labels": True}
    box = {"bbox": [1, 2, 3, 4], "category_id": 0, "score": 0.9}
    (image,) = self_labelled([record], lambda _: Detected(10, 10, [box] * count), has_masks=False)
    assert ("without_labels" in image) == (count == 0)


def test_images_of_another_folder_cannot_be_left_out_nor_all():
    image = {"file_name": "a.png", "annotations": [{}]}
    other = {"file_name": "b.png", "annotations": [], "without_labels": True}
    assert without_labelled([image, other], [image, other]) == [other]
    assert "none of them is a file of --data" in refusal(without_labelled, [other], [image])
    assert "every file of --data is one of them" in refusal(without_labelled, [image], [image, other])


def test_images_without_any_found_box_are_said_and_left_out(tmp_path, caplog):
    name = write_boxes(tmp_path, {"a.png": [(1, 5, 5, 20, 20)], "b.png": []}, classes=("object",))
    cfg = with_values(recipe(), {"DATASETS.TRAIN": (name,)})
    with caplog.at_level(logging.INFO):
        assert inspect_training(cfg, looked_at=False) == 1
    assert "2 images, 1 of them without boxes" in caplog.text
    nothing = write_boxes(tmp_path, {"a.png": [], "b.png": []}, classes=("object",))
    assert "has no box" in refusal(inspect_training, with_values(cfg, {"DATASETS.TRAIN": (nothing,)}), looked_at=False)
