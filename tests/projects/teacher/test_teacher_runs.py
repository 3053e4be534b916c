"""Whole runs with a teacher on ToyScenes: resumed, on two processes, what they leave, what is refused before them."""

import json
import logging
import re
import shutil
import time
from argparse import Namespace
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from commands import launch_forks
from PIL import Image
from runs import assert_resumes, load, run
from torch import Tensor
from trees import logged, refusal, refused

from projects.Planning import measuring
from projects.Planning.evaluation_cost import seconds_of_evaluation
from projects.Predict.file_predictions import FilePredictor, find_sources
from projects.Predict.predictions import finetuned_config
from projects.Teacher.samples import WithUnlabelled
from projects.Teacher.watching import LONG, FollowTeacher
from revisit.checkpoint.checkpointer import RevisitCheckpointer, WholeModelCheckpointer
from revisit.checkpoint.metrics_file import read_metrics
from revisit.data.sources.catalog import get_records, register
from revisit.engine.data_checks import inspect_training
from revisit.engine.finetune_trainer import FinetuneTrainer
from revisit.engine.setup import make_config
from revisit.engine.trainer import RevisitTrainer
from revisit.engine.writers import Writers
from revisit.keys import Facts, resolve_auto_values, with_values
from revisit.modeling.distributed import unwrap

from detectron2.config import CfgNode
from detectron2.modeling import build_model
from detectron2.utils import comm

LEAST = (
    "MODEL.META_ARCHITECTURE TeacherDetector DATASETS.UNLABELLED ('toy_coco_val',) TEACHER.BURN_IN 1 SEED 5 "
    "TEACHER.MOMENTUM 0.5 TEACHER.THRESHOLD (0.0,) SOLVER.IMS_PER_BATCH 4 SOLVER.MAX_ITER 5 SOLVER.WARMUP_ITERS 1 "
    "SOLVER.STEPS (4,) SOLVER.CHECKPOINT_PERIOD 3 MODEL.DEVICE cpu INPUT.MIN_SIZE_TRAIN (64,80) "
    "INPUT.MAX_SIZE_TRAIN 100 TEST.PRECISE_BN.NUM_ITER 2 DATASETS.TEST () TEST.DETECTIONS_PER_IMAGE 5 "
)
NARROW = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 MODEL.FPN.OUT_CHANNELS 8"
ALL_BOXES = "MODEL.ROI_HEADS.SCORE_THRESH_TEST 0.0"
DETECTORS = {
    "faster_rcnn_fpn": "MODEL.ROI_BOX_HEAD.FC_DIM 16",
    "retinanet_fpn": "TEACHER.DETECTOR RetinaNet MODEL.RETINANET.NUM_CONVS 1 MODEL.RETINANET.SCORE_THRESH_TEST 0.0",
}


def teacher_config(output: Path, recipe: str = "faster_rcnn_fpn", more: str = "") -> CfgNode:
    words = f"OUTPUT_DIR {output} {LEAST} {NARROW} {DETECTORS[recipe]} {more}".split()
    cfg = make_config(f"configs/toy/{recipe}.yaml", words, num_processes=comm.get_world_size())
    resolve_auto_values(cfg, Facts(images=60, processes=comm.get_world_size()))
    cfg.freeze()
    return cfg


def teach(
    output: Path, recipe: str, workers: int = 0, period: int = 2, more: str = "", **how: object
) -> RevisitTrainer:
    """By default precise BN follows iterations 1, 3 and 4."""
    cfg = teacher_config(output, recipe, f"DATALOADER.NUM_WORKERS {workers} {more}")
    cfg = with_values(cfg, {"TEST.EVAL_PERIOD": period})  # of no data set it is resolved to 0
    return run(cfg, trainer_class=FinetuneTrainer, **how)


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> Callable[[str], tuple[Path, dict[str, Tensor]]]:
    """The folder of a whole run by a recipe, to read, and its teacher's tensors; each is run once."""

    @cache
    def of(recipe: str) -> tuple[Path, dict[str, Tensor]]:
        folder = tmp_path_factory.mktemp(recipe)
        return folder, teach(folder, recipe).model.teacher.state_dict()

    return of


@pytest.mark.parametrize("recipe", DETECTORS)
def test_a_resumed_run_ends_bit_identical(toy_datasets, taught, tmp_path, recipe):
    """Both kinds of images, regions, looks, statistics, counts, and a RetinaNet's own running mean."""
    whole, _ = taught(recipe)
    assert load(whole / "model_0000002.pth")["trainer"]["hooks"]["FollowTeacher"]["count"] == 8
    assert_resumes(whole, tmp_path / "parts", 2, recipe, 2, train=teach)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("recipe", DETECTORS)
def test_evaluations_on_the_way_change_nothing_that_is_trained(toy_datasets, tmp_path, recipe, processes):
    """Neither precise statistics, which the next pseudo-labels would come from, nor the running mean of a RetinaNet."""
    launch_forks(teach_with_period, processes, tmp_path / "often", recipe, 1)
    launch_forks(teach_with_period, processes, tmp_path / "rarely", recipe, 0)
    often, rarely = (load(tmp_path / name / "model_final.pth") for name in ("often", "rarely"))
    assert all(torch.equal(value, rarely["model"][key]) for key, value in often["model"].items())


def teach_with_period(output: Path, recipe: str, period: int) -> None:
    statistics = f"{ALL_BOXES} MODEL.RESNETS.NORM BN MODEL.FPN.NORM BN TEST.PRECISE_BN.ENABLED True"
    teach(output, recipe, 0, period, statistics)


def test_a_resumed_run_wants_the_same_photographs(toy_datasets, taught, tmp_path, write_pictures):
    shutil.copytree(taught("faster_rcnn_fpn")[0], tmp_path / "run")
    (tmp_path / "run/model_final.pth").unlink()
    write_pictures(tmp_path / "photos", 5)
    more = f"DATASETS.UNLABELLED ('folder:{tmp_path}/photos',)"
    cfg = teacher_config(tmp_path / "run", more=more)
    message = "cannot resume: DATASETS.UNLABELLED has other photographs than before, by number"
    refused(message, run, cfg, trainer_class=FinetuneTrainer, resume=True)


def test_a_run_leaves_a_plain_detector_which_is_its_teacher(toy_datasets, tmp_path, monkeypatch):
    monkeypatch.setattr(Writers, "PERIOD", 5)
    coco = toy_datasets / "toy_scenes/coco"
    test = f"coco:{coco}/val2017:{coco}/annotations/instances_val2017.json"
    register(test)
    options = f"DATASETS.TEST ('{test}',) TEST.EVAL_PERIOD 5 SOLVER.STEPS () INPUT.MIN_SIZE_TEST 64"
    trainer = run(teacher_config(tmp_path / "run", more=f"{options} {ALL_BOXES}"), trainer_class=FinetuneTrainer)
    weights = tmp_path / "run/model_final.pth"
    cfg = make_config("", ["MODEL.WEIGHTS", str(weights), "OUTPUT_DIR", str(tmp_path / "eval")], trained=True)
    assert cfg.MODEL.META_ARCHITECTURE == "GeneralizedRCNN"
    assert json.dumps(FinetuneTrainer.evaluate(cfg, resume=False)) == json.dumps(trainer.results)  # nan is nan
    recipe, same = "configs/toy/faster_rcnn_fpn.yaml", f"{NARROW} {DETECTORS['faster_rcnn_fpn']}"
    with_recipe = make_config(recipe, f"MODEL.WEIGHTS {weights} {same}".split(), trained=True)
    model = build_model(with_recipe)
    WholeModelCheckpointer(model, with_recipe).load(str(weights))
    taught = trainer.model.teacher.state_dict()
    assert all(torch.equal(value, taught[key]) for key, value in model.state_dict().items())
    student = trainer.model.student.state_dict()
    assert not torch.equal(student["roi_heads.box_head.fc1.weight"], taught["roi_heads.box_head.fc1.weight"])
    again = f"OUTPUT_DIR {tmp_path}/run DATASETS.TEST ('{test}',) INPUT.MIN_SIZE_TEST 64 {same} {ALL_BOXES}".split()
    again = make_config(recipe, again, trained=True, resume=True)
    assert json.dumps(FinetuneTrainer.evaluate(again, resume=True)) == json.dumps(trainer.results)
    metrics = read_metrics(tmp_path / "run/metrics.json")
    assert {"teacher/boxes", "teacher/score", "teacher/precision", "teacher/recall"} <= metrics.keys()
    assert {"loss_rpn_cls_unlabelled", "loss_cls_unlabelled"} <= metrics.keys()
    shares = [values for name, values in metrics.items() if name.startswith("teacher/share-")]
    assert len(shares) == 10 and sum(value for values in shares for _, value in values) == pytest.approx(1)
    with Image.open(tmp_path / "run/teacher/iteration_0000004.png") as picture:
        assert picture.size[0] > 1000


def test_others_predict_with_its_checkpoint_and_start_from_it_as_from_any_detectors(
    toy_datasets, taught, tmp_path, write_pictures
):
    folder, teacher = taught("faster_rcnn_fpn")
    write_pictures(tmp_path / "photos", 2)
    weights, found = str(folder / "model_final.pth"), tmp_path / "found"
    found.mkdir()
    cfg = finetuned_config(Namespace(weights=weights, config_file="", opts=["MODEL.DEVICE", "cpu"]))
    predictor = FilePredictor(cfg, found)
    predictor.run(find_sources([tmp_path / "photos"], found))
    assert predictor.is_detector and not predictor.unreadable and len(list(found.glob("*.png"))) == 2
    options = f"{NARROW} {DETECTORS['faster_rcnn_fpn']} OUTPUT_DIR {tmp_path}/next MODEL.DEVICE cpu".split()
    plain = make_config("configs/toy/faster_rcnn_fpn.yaml", options)
    model = build_model(plain)
    RevisitCheckpointer(model, plain).resume_or_load(weights, resume=False)
    assert all(torch.equal(value, teacher[name]) for name, value in model.state_dict().items())


def test_a_converted_backbone_starts_student_and_teacher(toy_datasets, pretrained, tmp_path):
    cfg = teacher_config(tmp_path)
    model = build_model(cfg)
    RevisitCheckpointer(model, cfg).resume_or_load(f"{pretrained}/backbone.pth", resume=False)
    converted = load(pretrained / "backbone.pth")["model"]
    for network in (model.student, model.teacher):
        ours = network.state_dict()
        assert all(torch.equal(ours[f"backbone.bottom_up.{name}"], value) for name, value in converted.items())


def two_steps(output: Path) -> dict:
    """A run where nothing is drawn among regions, and what was read for its first iterations."""
    every = "MODEL.RPN.BATCH_SIZE_PER_IMAGE 100000 MODEL.RPN.POSITIVE_FRACTION 1.0 TEACHER.BURN_IN 0 SOLVER.MAX_ITER 2 "
    every += "SOLVER.STEPS () TEACHER.IMAGES_PER_LABELLED 2 TEST.PRECISE_BN.ENABLED False DATALOADER.NUM_WORKERS 0"
    every += " INPUT.MIN_SIZE_TRAIN (64,)"  # a batch is padded to its largest image
    every += " MODEL.RESNETS.NORM naiveSyncBN MODEL.FPN.NORM naiveSyncBN" if comm.get_world_size() > 1 else ""
    trainer = run(teacher_config(output, more=every), trainer_class=FinetuneTrainer)
    batch = next(iter(trainer.data_loader))
    read = [(sample["file_name"], *(each["file_name"] for each in sample["unlabelled"])) for sample in batch]
    histories = trainer.storage.histories()
    losses = {name: histories[name].values()[0][0] for name in histories if name.startswith("loss_rpn_cls")}
    return {"losses": losses, "read": read, "model": unwrap(trainer.model).state_dict()}


def test_two_processes_read_and_lose_what_one_does_and_have_one_teacher(toy_datasets, tmp_path):
    (one,) = launch_forks(two_steps, 1, tmp_path / "one")
    both = launch_forks(two_steps, 2, tmp_path / "both")
    assert sorted(one["read"]) == sorted(both[0]["read"] + both[1]["read"]) and len(set(one["read"])) == 4
    assert both[0]["losses"] == pytest.approx(one["losses"], rel=1e-4) and len(one["losses"]) == 2
    assert all(torch.equal(value, both[1]["model"][key]) for key, value in both[0]["model"].items())


def test_one_class_and_one_photograph_are_enough(toy_datasets, tmp_path, write_pictures, monkeypatch):
    monkeypatch.setattr(Writers, "PERIOD", 5)
    write_pictures(tmp_path / "photos", 1)
    register("class_agnostic:toy_coco_train")
    sets = f"DATASETS.TRAIN ('class_agnostic:toy_coco_train',) DATASETS.UNLABELLED ('folder:{tmp_path}/photos',)"
    more = f"{sets} MODEL.ROI_HEADS.NUM_CLASSES 1 TEST.EVAL_PERIOD 0 {ALL_BOXES}"
    run(teacher_config(tmp_path / "run", more=more), trainer_class=FinetuneTrainer)
    metrics = read_metrics(tmp_path / "run/metrics.json")
    assert [value for _, value in metrics["teacher/share-object"]] == [1.0]
    assert metrics.keys() >= {"teacher/boxes", "teacher/precision", "loss_cls_unlabelled"}


def test_all_photographs_are_seen_once_before_one_is_seen_again():
    class Named:
        def __init__(self, count: int):
            self.count = count

        def __len__(self) -> int:
            return self.count

        def __getitem__(self, key: tuple[int, int]) -> dict:
            return {"key": key}

    samples = WithUnlabelled(Named(3), Named(7), count=2, seed=1)
    keys = [each["key"] for position in range(7) for each in samples[position, 0]["unlabelled"]]
    assert [position for position, _ in keys] == list(range(14))
    epochs = [[index for _, index in keys[:7]], [index for _, index in keys[7:]]]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs) and epochs[0] != epochs[1]


def test_no_photographs_or_thresholds_of_other_classes_are_refused(toy_datasets, tmp_path):
    none = teacher_config(tmp_path, more="DATASETS.UNLABELLED ()")
    refused("DATASETS.UNLABELLED names no photographs for TeacherDetector: expected such as", inspect_training, none)
    two = teacher_config(tmp_path, more="TEACHER.THRESHOLD (0.5,0.6)")
    refused("TEACHER.THRESHOLD has 2 numbers for 10 classes", inspect_training, two)
    missing = teacher_config(tmp_path, more=f"DATASETS.UNLABELLED ('folder:{tmp_path}/nowhere',)")
    assert "nowhere" in refusal(inspect_training, missing)
    (tmp_path / "empty").mkdir()
    empty = teacher_config(tmp_path, more=f"DATASETS.UNLABELLED ('folder:{tmp_path}/empty',)")
    refused("no images in .*/empty", inspect_training, empty)


def test_photographs_that_are_test_images_under_other_names_are_warned_of(toy_datasets, tmp_path):
    records = get_records("toy_coco_val")
    (tmp_path / "photos").mkdir()
    for n, record in enumerate(records[:3]):
        shutil.copy(record["file_name"], tmp_path / f"photos/renamed_{n}{Path(record['file_name']).suffix}")
    more = f"DATASETS.UNLABELLED ('folder:{tmp_path}/photos',) DATASETS.TEST ('toy_coco_val',)"
    cfg = teacher_config(tmp_path, more=more)
    warnings = [text for level, text in logged(inspect_training, cfg) if level == logging.WARNING]
    assert any("3 images of toy_coco_val are among DATASETS.UNLABELLED" in text for text in warnings)


def test_photographs_that_all_have_labels_are_warned_of_and_others_are_not(toy_datasets, tmp_path):
    def warnings(unlabelled: str, labelled: str = "toy_coco_train") -> list[str]:
        cfg = teacher_config(tmp_path, more=f"DATASETS.UNLABELLED {unlabelled} DATASETS.TRAIN ('{labelled}',)")
        logs = logged(inspect_training, cfg)
        return [text for level, text in logs if level == logging.WARNING and "has labels" in text]

    coco = toy_datasets / "toy_scenes/coco"
    photographs = f"folder:{coco}/train2017"
    (warning,) = warnings(f"('{photographs}',)")
    assert re.match(r"each of the \d+ photographs of DATASETS.UNLABELLED has labels: a teacher adds nothing", warning)
    assert not warnings(f"('{photographs}','toy_coco_val')")
    content = json.loads((coco / "annotations/instances_train2017.json").read_text())
    first = content["images"][0]["id"]
    content["annotations"] = [box for box in content["annotations"] if box["image_id"] != first]
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    assert not warnings(f"('{photographs}',)", f"coco:{coco}/train2017:{tmp_path}/boxes.json")  # lists all images


def test_a_burn_in_as_long_as_the_run_is_refused(toy_datasets, tmp_path):
    cfg = teacher_config(tmp_path, more="TEACHER.BURN_IN 5")
    refused("TEACHER.BURN_IN 5 of a run of 5: expected less", run, cfg, trainer_class=FinetuneTrainer)


def test_lengths_follow_the_run(toy_datasets, tmp_path):
    long = "TEACHER.BURN_IN -1 TEACHER.MOMENTUM 0.0 SOLVER.MAX_ITER 1330"
    cfg = teacher_config(tmp_path, more=long)
    assert (cfg.TEACHER.BURN_IN, cfg.TEACHER.MOMENTUM) == (266, pytest.approx(1 - 20 / 1330, abs=1e-6))
    assert teacher_config(tmp_path, more=f"{long}00").TEACHER.MOMENTUM == 0.9996


def test_lengths_follow_a_run_of_minutes(toy_datasets, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "_step_and_evaluation", lambda cfg: (0.25, 4.0))
    monkeypatch.setattr(measuring, "_BEGAN", time.perf_counter())
    options = "TEACHER.BURN_IN -1 TEACHER.MOMENTUM 0.0 SOLVER.MAX_ITER 0 SOLVER.MINUTES 600"
    cfg = teacher_config(tmp_path, more=options)
    resolve_auto_values(cfg, Facts(images=60, stated=[{"SOLVER.MINUTES"}], launched=True))
    length, horizon = cfg.SOLVER.MAX_ITER, 2500
    assert length > 20 * horizon
    assert cfg.TEACHER.BURN_IN == round(length / 5) and cfg.TEACHER.MOMENTUM == 1 - 1 / horizon


def test_the_batch_norm_of_an_evaluation_is_timed_on_the_teacher_alone(toy_datasets, tmp_path):
    """Of student and teacher together it is refused: they share layers."""
    cfg = teacher_config(tmp_path, more="TEST.PRECISE_BN.ENABLED True TEST.PRECISE_BN.NUM_ITER 1 DATASETS.TEST ()")
    assert seconds_of_evaluation(cfg, build_model(cfg).train()) > 0


def test_a_checkpoint_has_the_counts_of_all_processes(toy_datasets, tmp_path, monkeypatch):
    cfg = teacher_config(tmp_path)
    model = build_model(cfg)
    hook = FollowTeacher(model, cfg)
    hook.trainer = Trainer()
    model.follow = lambda iteration: None
    of_each = [(torch.full((6, 10), float(rank)), 4) for rank in (1, 2)]
    monkeypatch.setattr(comm, "all_gather", lambda of_this_one: of_each)
    hook.after_step()
    state = hook.state_dict()
    assert state["table"].tolist() == [[3.0] * 10] * 6 and state["count"] == 8


class Trainer:
    """What a hook asks of a trainer."""

    def __init__(self):
        self.iter, self.max_iter, self.storage = 0, 10**6, self

    def put_scalars(self, **scalars: object) -> None:
        pass


@pytest.mark.parametrize("kind", ["nothing", "one class", "healthy"])
def test_a_teacher_that_goes_bad_for_long_is_warned_of_once(toy_datasets, tmp_path, caplog, kind):
    cfg = teacher_config(tmp_path)
    model = build_model(cfg)
    hook = FollowTeacher(model, cfg)
    hook.trainer = Trainer()
    model.follow = lambda iteration: None
    found = {"nothing": [0] * 10, "one class": [9] + [0] * 9, "healthy": [1] * 10}[kind]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for hook.trainer.iter in range(2 * LONG):
            table, _ = model.tally.take()
            table[0], table[2] = torch.tensor(found), torch.ones(10)
            model.tally.take = lambda table=table: (table, 4)
            hook.after_step()
            assert hook.trainer.iter >= LONG - 1 or not caplog.records
    assert len(caplog.records) == (kind != "healthy")
    if kind != "healthy":
        words = {"nothing": "found next to nothing", "one class": "nearly no "}[kind]
        assert f"for {LONG} iterations the teacher has" in caplog.text and words in caplog.text


def test_a_resumed_run_begins_from_thresholds_that_its_config_changes(toy_datasets, tmp_path):
    def hook_at(threshold: str) -> FollowTeacher:
        cfg = teacher_config(tmp_path, more=f"TEACHER.THRESHOLD {threshold}")
        return FollowTeacher(build_model(cfg), cfg)

    def resumed(threshold: str, state: dict) -> list[float]:
        hook = hook_at(threshold)
        hook.load_state_dict(state)
        return hook.state_dict()["thresholds"].tolist()

    before = hook_at("(0.7,)")
    before._model.thresholds = torch.full((10,), 0.6)
    state = before.state_dict()
    assert resumed("(0.7,)", state) == pytest.approx([0.6] * 10)
    assert resumed("(0.9,)", state) == pytest.approx([0.9] * 10)
    of_one = "(0.8,0.7,0.7,0.7,0.7,0.7,0.7,0.7,0.7,0.7)"
    assert resumed(of_one, state) == pytest.approx([0.8] + [0.6] * 9)
    assert hook_at("(0.5,)").state_dict()["highest"].tolist() == pytest.approx([0.5] * 10)
    del state["highest"]  # of an earlier version
    assert resumed("(0.9,)", state) == pytest.approx([0.6] * 10)


def test_labels_are_wanted_by_the_images_of_all_iterations(toy_datasets, tmp_path):
    """Of 10 boxes of each class among all labelled images, so many among the photographs."""
    cfg = teacher_config(tmp_path)
    model = build_model(cfg)
    hook = FollowTeacher(model, cfg)
    hook.trainer = Trainer()
    model.follow = lambda iteration: None
    table = torch.zeros(6, 10)
    table[2] = 10.0
    model.tally.take = lambda: (table, 4)
    for hook.trainer.iter in range(2 * Writers.PERIOD):
        hook.after_step()
    state = hook.state_dict()
    assert state["images"] == 2 * Writers.PERIOD * cfg.SOLVER.IMS_PER_BATCH and Writers.PERIOD > 1
    assert state["labels"].tolist() == [2 * Writers.PERIOD * 10.0] * 10
