"""Detectron2's detection evaluators as the trainer uses them, against values computed by hand."""

import json
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from commands import launch_forks
from labels import evaluate_exact
from PIL import Image
from trees import logged, refused, touch, write

from projects.Labels.truth import check_voc_truth
from revisit.boxes.predictions_file import OF_PREDICTIONS, PREDICTIONS, evaluated_set, read_results
from revisit.config import add_revisit_config
from revisit.data.sources.catalog import get_records, share_classes
from revisit.data.sources.class_names import class_metadata
from revisit.data.sources.inspection import inspect
from revisit.engine.finetune_trainer import FinetuneTrainer

from detectron2.config import get_cfg
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.datasets import register_pascal_voc
from detectron2.evaluation import DatasetEvaluator
from detectron2.structures import Boxes, BoxMode, Instances
from detectron2.utils import comm

# x0, y0, x1, y1 in Detectron2's form; VOC's own counts from 1 and includes the last pixel.
LEFT, RIGHT, LOW, NOWHERE = [8, 8, 40, 40], [60, 8, 90, 40], [8, 60, 40, 90], [60, 60, 90, 90]
# By image: the objects (box, difficult) and the detections (box, score) of dogs. There is no cat.
TRUTH = {"000001": [(LEFT, 0), (RIGHT, 0)], "000002": [(LEFT, 0), (LOW, 1)]}
FOUND = {"000001": [(LEFT, 0.9), (NOWHERE, 0.8)], "000002": [(LEFT, 0.7), (LOW, 0.95), (LEFT, 0.6)]}


def write_voc(folder: Path) -> None:
    for name in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (folder / name).mkdir(parents=True)
    (folder / "ImageSets/Main/test.txt").write_text("".join(f"{image}\n" for image in TRUTH))
    for image, objects in TRUTH.items():
        text = "".join(
            f"<object><name>dog</name><pose>Left</pose><truncated>0</truncated><difficult>{difficult}</difficult>"
            f"<bndbox><xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
            for (x0, y0, x1, y1), difficult in objects
        )
        size = "<size><width>100</width><height>100</height></size>"
        (folder / f"Annotations/{image}.xml").write_text(f"<annotation>{size}{text}</annotation>")


def detections(found: list[tuple[list[int], float]]) -> dict:
    instances = Instances((100, 100))
    instances.pred_boxes = Boxes(torch.tensor([box for box, _ in found], dtype=torch.float32).reshape(-1, 4))
    instances.scores = torch.tensor([score for _, score in found])
    instances.pred_classes = torch.ones(len(found), dtype=torch.int64)
    return {"instances": instances}


@contextmanager
def evaluator_of(name: str, output: Path, *, masks: bool = False) -> Iterator[DatasetEvaluator]:
    """Of a data set that is registered until then."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.MODEL.MASK_ON = masks
    cfg.OUTPUT_DIR = str(output)
    try:
        evaluator = FinetuneTrainer.build_evaluator(cfg, name)
        evaluator.reset()
        yield evaluator
    finally:
        DatasetCatalog.remove(name)
        MetadataCatalog.remove(name)


def evaluate_voc(folder: Path) -> dict:
    """All images in one process, one image each in two."""
    register_pascal_voc("hand_made_voc", str(folder), "test", 2007, class_names=["cat", "dog"])
    MetadataCatalog.get("hand_made_voc").evaluator_type = "pascal_voc"
    with evaluator_of("hand_made_voc", folder) as evaluator:
        for number, (image, found) in enumerate(FOUND.items()):
            if number % comm.get_world_size() == comm.get_rank():
                evaluator.process([{"image_id": image}], [detections(found)])
        return evaluator.evaluate()


@pytest.mark.parametrize("processes", [1, 2])
def test_voc_ap_is_that_computed_by_hand(tmp_path, processes):
    """By score: hit, miss, hit, second hit of one object (a miss); the difficult object and its hit count nowhere.

    Precision and recall are (1, 1/3), (1/2, 1/3), (2/3, 2/3), (1/2, 2/3); over the 11 recalls 0, 0.1, ..., 1 the
    best precision is 1 up to 0.3, 2/3 up to 0.6 and then 0. Every hit is exact, so each IoU threshold gives the same.
    A class without objects counts 0, as Detectron2 has it.
    """
    write_voc(tmp_path)
    results, *_ = launch_forks(evaluate_voc, processes, tmp_path)
    dog = 100 * (4 * 1 + 3 * 2 / 3) / 11
    assert results["bbox"] == pytest.approx({"AP": dog / 2, "AP50": dog / 2, "AP75": dog / 2})


@pytest.mark.parametrize("found", [[(LEFT, 0.7)], [(LEFT, 0.7), (LOW, 0.95)]])
@pytest.mark.parametrize(("name", "number"), [("by_class:voc:{}:test:2:0", 11), ("class_agnostic:voc:{}:test", 0)])
def test_difficult_objects_count_nowhere_in_parts_of_voc_that_learn_them(name, number, found, tmp_path):
    """Of image 000002 the dog in LEFT is found; the one in LOW is difficult."""
    write_voc(tmp_path)
    for image in TRUTH:
        touch(tmp_path / f"JPEGImages/{image}.jpg")
    name = name.format(tmp_path)
    outputs = {"000001": detections([(LEFT, 0.9), (RIGHT, 0.9)]), "000002": detections(found)}
    records = get_records(name)
    with evaluator_of(name, tmp_path / "inference") as evaluator:
        for record in records:
            output = outputs[record["image_id"]]
            output["instances"].pred_classes[:] = number
            evaluator.process([record], [output])
            assert len(record["annotations"]) == 2 and not any(each.get("iscrowd") for each in record["annotations"])
        assert evaluator.evaluate()["bbox"]["AP"] == pytest.approx(100)


def test_yolo_labels_are_scored_as_they_are_now(tmp_path):
    Image.new("RGB", (100, 100)).save(tmp_path / "1.jpg")
    (tmp_path / "names").write_text("cat\ndog")
    name = f"yolo:{tmp_path}:{tmp_path}:{tmp_path}/names"
    for x, ap in ((0.24, 100), (0.7, 0)):
        (tmp_path / "1.txt").write_text(f"1 {x} 0.24 0.32 0.32")
        (record,) = get_records(name)
        with evaluator_of(name, tmp_path / "inference") as evaluator:
            evaluator.process([record], [detections([(LEFT, 0.9)])])
            assert evaluator.evaluate()["bbox"]["AP-dog"] == pytest.approx(ap)
            assert not MetadataCatalog.get(name).get("json_file")


def test_records_without_objects_have_an_undefined_score(tmp_path):
    """As a file in COCO's format without any has; a run would miss a score that is not there."""
    Image.new("RGB", (100, 100)).save(tmp_path / "1.jpg")
    (tmp_path / "1.txt").touch()
    (tmp_path / "names").write_text("cat\ndog")
    name = f"yolo:{tmp_path}:{tmp_path}:{tmp_path}/names"
    (record,) = get_records(name)
    with evaluator_of(name, tmp_path) as evaluator:
        evaluator.process([record], [detections([(LEFT, 0.9)])])
        assert math.isnan(evaluator.evaluate()["bbox"]["AP"])


@pytest.mark.parametrize("lists", [{}, {"annotations": []}], ids=["absent", "empty"])
def test_a_coco_file_without_annotations_has_an_undefined_score_and_its_predictions_are_kept(lists, tmp_path):
    Image.new("RGB", (100, 100)).save(tmp_path / "1.jpg")
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    content = {"images": [{"id": 1, "file_name": "1.jpg"}], "categories": categories, **lists}
    (tmp_path / "test.json").write_text(json.dumps(content))
    name = f"coco:{tmp_path}:{tmp_path}/test.json"
    (record,) = get_records(name)
    with evaluator_of(name, tmp_path) as evaluator:
        evaluator.process([record], [detections([(LEFT, 0.9)])])
        assert math.isnan(evaluator.evaluate()["bbox"]["AP"])
    (file,) = tmp_path.rglob(PREDICTIONS)
    assert len(json.loads(file.read_text())) == 1


def test_each_of_several_test_sets_keeps_its_predictions(tmp_path):
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.OUTPUT_DIR = str(tmp_path)
    for part in ("one", "two"):
        write(tmp_path / part / "names", "cat\ndog")
        for n in range(1 + (part == "two")):
            Image.new("RGB", (100, 100)).save(tmp_path / part / f"{n}.jpg")
            write(tmp_path / part / f"{n}.txt", "1 0.24 0.24 0.32 0.32")
    places = [tmp_path / part for part in ("one", "two")]
    cfg.DATASETS.TEST = tuple(f"yolo:{place}:{place}:{place}/names" for place in places)
    for name in cfg.DATASETS.TEST:
        get_records(name)
        evaluate_exact(cfg, name)
    for folder, name, count in zip(("inference", "inference/2"), cfg.DATASETS.TEST, (1, 2), strict=True):
        assert json.loads((tmp_path / folder / "data_set.json").read_text())["data_set"] == name
        assert len(json.loads((tmp_path / folder / "coco_instances_results.json").read_text())) == count


@pytest.mark.parametrize("ids", [(1, 2), (1.0, 2.0), ("c", "d")])
def test_coco_classes_are_matched_by_name(ids, tmp_path):
    """The test file has the network's classes the other way round, without a rare one, areas and sizes, ids from 0."""
    cat, dog = ids
    Image.new("RGB", (100, 100)).save(tmp_path / "1.jpg")
    boxes = {"dog": (dog, [8, 8, 32, 32]), "cat": (cat, [60, 8, 30, 32])}
    annotations = [
        {"id": n, "image_id": 1, "category_id": id_, "bbox": box} for n, (id_, box) in enumerate(boxes.values())
    ]
    categories = [{"id": cat, "name": "cat"}, {"id": dog, "name": "dog"}]
    content = {"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": annotations, "categories": categories}
    (tmp_path / "test.json").write_text(json.dumps(content))
    test = f"coco:{tmp_path}:{tmp_path}/test.json"
    share_classes("a.pth", [test], names=["dog", "emu", "cat"])
    (record,) = get_records(test)
    with evaluator_of(test, tmp_path) as evaluator:
        output = detections([(LEFT, 0.9), (NOWHERE, 0.8), (LEFT, 0.95)])
        output["instances"].pred_classes = torch.tensor([0, 2, 1])  # the dog that is there, and a cat that is not
        evaluator.process([record], [output])
        results = evaluator.evaluate()["bbox"]
    scores = {name: value for name, value in results.items() if name == "AP" or "-" in name}
    assert scores == {"AP": pytest.approx(50), "AP-dog": pytest.approx(100), "AP-cat": 0}


@pytest.mark.parametrize("lacks_a_class", [False, True])
@pytest.mark.parametrize("ids", [(3, 1), (0.5, 0.25), ("d", "c"), ("1", "2")])
def test_records_are_scored_by_whatever_ids_their_classes_have(ids, lacks_a_class, tmp_path):
    """As parts of a data set in COCO's format are, which have its ids."""
    boxes = [{"bbox": LEFT, "bbox_mode": BoxMode.XYXY_ABS, "category_id": n} for n in (0, 1)]
    record = {"file_name": "1.jpg", "image_id": 7, "height": 100, "width": 100, "annotations": boxes}
    DatasetCatalog.register("part", lambda: [record])
    index = {id_: n for n, id_ in enumerate(ids)}
    about = {"thing_classes": ["dog", "cat"], "thing_dataset_id_to_contiguous_id": index}
    MetadataCatalog.get("part").set(evaluator_type="coco", **about)
    if lacks_a_class:
        share_classes("a.pth", ["part"], names=["dog", "cat", "emu"])
        get_records("part")
        about = class_metadata("part")
        assert len(about["thing_dataset_id_to_contiguous_id"]) == 3
    with evaluator_of("part", tmp_path) as evaluator:
        evaluator.process([record], [detections([(LEFT, 0.9)])])
        results = evaluator.evaluate()["bbox"]
        assert vars(MetadataCatalog.get("part")).items() >= about.items()
    classes = evaluated_set(tmp_path / OF_PREDICTIONS).classes
    (boxes,) = read_results(tmp_path / PREDICTIONS, [7], classes)
    assert list(classes.values())[:2] == ["dog", "cat"] and boxes.classes.tolist() == [1]
    scores = {name: value for name, value in results.items() if name == "AP" or "-" in name}
    assert math.isnan(scores.pop("AP-emu", math.nan))
    assert scores == {"AP": pytest.approx(50), "AP-dog": 0, "AP-cat": pytest.approx(100)}


@pytest.mark.parametrize("masks", [False, True])
def test_a_network_that_finds_nothing_has_ap_0(masks, tmp_path):
    """A dog of 40 x 40 px, of medium size, and no cat: classes and sizes without truth stay without a score."""
    Image.new("RGB", (100, 100)).save(tmp_path / "1.jpg")
    outline = [8, 8, 48, 8, 48, 48, 8, 48]
    box = {"id": 1, "image_id": 1, "category_id": 2, "bbox": [8, 8, 40, 40], "segmentation": [outline]}
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    pictures = [{"id": 1, "file_name": "1.jpg", "width": 100, "height": 100}]
    (tmp_path / "test.json").write_text(
        json.dumps({"images": pictures, "annotations": [box], "categories": categories})
    )
    test = f"coco:{tmp_path}:{tmp_path}/test.json"
    (record,) = get_records(test)
    with evaluator_of(test, tmp_path, masks=masks) as evaluator:
        evaluator.process([record], [detections([])])
        results = evaluator.evaluate()
    nan = pytest.approx(math.nan, nan_ok=True)
    expected = {"AP": 0, "AP50": 0, "AP75": 0, "APs": nan, "APm": 0, "APl": nan, "AP-cat": nan, "AP-dog": 0}
    assert results == dict.fromkeys(("bbox", "segm")[: 1 + masks], expected)


@pytest.mark.parametrize("asked", [50, 100, 150])
@pytest.mark.parametrize("network", ["GeneralizedRCNN", "RetinaNet"])
def test_at_least_100_detections_of_an_image_count(asked, network, tmp_path):
    """150 objects, all found, with equal scores: with 100 detections recall ends at 2/3, over 67 of the 101 recalls."""
    Image.new("RGB", (300, 100)).save(tmp_path / "1.jpg")
    boxes = [[20 * (n % 15), 10 * (n // 15), 14, 8] for n in range(150)]
    annotations = [{"id": n, "image_id": 1, "category_id": 1, "bbox": box} for n, box in enumerate(boxes)]
    content = {"images": [{"id": 1, "file_name": "1.jpg"}], "categories": [{"id": 1, "name": 7}]}
    write(tmp_path / "test.json", json.dumps(content | {"annotations": annotations}))
    name = f"coco:{tmp_path}:{tmp_path}/test.json"
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.MODEL.MASK_ON, cfg.MODEL.META_ARCHITECTURE = False, network
    cfg.OUTPUT_DIR, cfg.TEST.DETECTIONS_PER_IMAGE = str(tmp_path), asked
    cfg.MODEL.ROI_HEADS.NUM_CLASSES = cfg.MODEL.RETINANET.NUM_CLASSES = 1
    warnings = [line for level, line in logged(inspect, cfg, name, to_learn=False) if level == logging.WARNING]
    assert len(warnings) == (asked < 150) and all("TEST.DETECTIONS_PER_IMAGE" in line for line in warnings)
    assert MetadataCatalog.get(name).thing_classes == ["7"]
    _, results = evaluate_exact(cfg, name)
    assert results["bbox"]["AP"] == pytest.approx(100 if asked == 150 else 100 * 67 / 101)


def test_voc_ap_of_nothing_is_0(tmp_path, monkeypatch):
    write_voc(tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "FOUND", dict.fromkeys(FOUND, []))
    assert evaluate_voc(tmp_path)["bbox"] == {"AP": 0, "AP50": 0, "AP75": 0}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("objects", [[], [(LEFT, 1)]])
def test_voc_ap_of_a_split_without_objects_is_0(objects, processes, tmp_path, monkeypatch):
    """Of none at all, or of difficult ones alone."""
    monkeypatch.setattr(sys.modules[__name__], "TRUTH", dict.fromkeys(TRUTH, objects))
    write_voc(tmp_path)
    results, *_ = launch_forks(evaluate_voc, processes, tmp_path)
    assert results["bbox"] == {"AP": 0, "AP50": 0, "AP75": 0}


@pytest.mark.parametrize("split", ["000001\n\n000002\n", "/000001\n000002\n"])
def test_a_split_that_detectron2_would_read_otherwise_is_refused(split, tmp_path):
    write_voc(tmp_path)
    (tmp_path / "ImageSets/Main/test.txt").write_text(split)
    refused("test.txt has empty lines, or slashes", check_voc_truth, "voc", tmp_path, "test", ["cat", "dog"])


def test_an_unscorable_voc_tree_is_refused_before_training(tmp_path):
    write_voc(tmp_path)
    check_voc_truth("voc", tmp_path, "test", ["cat", "dog"])
    file = tmp_path / "Annotations/000002.xml"
    for old, new in (("<pose>Left</pose>", ""), ("<xmin>9</xmin>", "<xmin>9.5</xmin>")):
        other = tmp_path / f"Annotations/{len(old)}.xml"  # Detectron2 remembers what it has read
        other.write_text(file.read_text().replace(old, new, 1))
        (tmp_path / "ImageSets/Main/test.txt").write_text(f"000001\n{other.stem}\n")
        refused(f"scored against {other}", check_voc_truth, "voc", tmp_path, "test", ["cat", "dog"])
