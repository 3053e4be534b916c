"""Pretraining, conversion and finetuning as README.md and docs/ type them, and the mistakes a user makes."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from commands import TINY, one_line_error, run
from runs import assert_numbers_are_explained, load
from trees import refused, write

from projects.ToyScenes import CLASS_NAMES
from revisit.checkpoint.metrics_file import read_metrics
from revisit.data.sources.catalog import get_records
from revisit.engine.data_checks import inspect_evaluation, inspect_training
from revisit.engine.setup import make_config
from revisit.errors import UserError

TRAIN = "python tools/train_net.py --config-file"
PRETRAIN = f"{TRAIN} configs/toy/pretrain.yaml"
NARROW = "SOLVER.WARMUP_ITERS 0 MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"
SHORT = f"SOLVER.MAX_ITER 3 SOLVER.IMS_PER_BATCH 4 {NARROW}"
SWITCHES = "SOLVER.AMP.ENABLED True SOLVER.ACCUMULATION_STEPS 2 MODEL.CHANNELS_LAST True"
DETECTION = "SOLVER.STEPS (2,) TEST.PRECISE_BN.NUM_ITER 2"
DENSE = "SOLVER.STEPS () SOLVER.STEP_EPOCHS () INPUT.CROP.SIZE [65,65] MODEL.SEM_SEG_HEAD.CONVS_DIM 8"
RELEASED = "INPUT.CROP.ENABLED False INPUT.SQUASH [65,97] INPUT.RANDOM_ROTATION 5.0 INPUT.RESAMPLING opencv"
RELEASED += " TEST.RESIZE_BACK nearest"
# options, a metric, processes
TASKS = {
    "detection": (f"{DETECTION} {SWITCHES}", "bbox/AP50", 1),
    "retinanet_fpn": (f"{DETECTION} {SWITCHES}", "bbox/AP50", 1),
    "mask_rcnn_fpn": (DETECTION, "segm/AP50", 2),
    "segmentation_voc": (DENSE, "sem_seg/mIoU", 2),
    "segmentation_cityscapes": (f"{DENSE} {SWITCHES} {RELEASED}", "sem_seg/mIoU", 1),
    "segmentation_nyud": (f"{DENSE} MODEL.SEM_SEG_HEAD.VARIANT multi_task_code", "sem_seg/mIoU", 1),
    "depth": (DENSE, "depth/rmse", 2),
}


def test_pretraining_leaves_what_docs_say_and_explain(pretrained):
    for name in ("config.yaml", "log.txt", "metrics.json", "model_final.pth", "backbone.pth", "backbone.yaml"):
        assert (pretrained / name).is_file(), name
    weights, saved = (load(pretrained / name)["model"] for name in ("backbone.pth", "model_final.pth"))
    assert all(torch.equal(value, saved[f"backbone.{name}"]) for name, value in weights.items())
    log = (pretrained / "log.txt").read_text().splitlines()
    first, second = (next(n for n, line in enumerate(log) if f" iter: {done} " in line) for done in (0, 1))
    assert first <= 60 and " eta: " in log[second]
    assert_numbers_are_explained(pretrained)
    assert "neighbor_purity" in read_metrics(pretrained / "metrics.json")


@pytest.mark.parametrize(
    "command",
    [
        "convert_to_d2.py {run}/model_final.pth {file}/below/backbone.pth",
        "make_shards.py --data toy_scenes_train --output {file}/below",
        "reproduce.py linear --profile toy --output {file}/below",
        "demo.py --how quick --output {file}/below",
    ],
)
def test_a_place_below_a_file_is_refused_by_every_tool(command, pretrained, toy_root, tmp_path):
    (tmp_path / "file").touch()
    words = command.format(run=pretrained, file=tmp_path / "file")
    assert f"{tmp_path}/file" in one_line_error(f"python tools/{words}", toy_root)


def test_resume_goes_on_where_the_run_ended(pretrained, toy_root, tmp_path):
    output = shutil.copytree(pretrained, tmp_path / "run")
    command = f"{PRETRAIN} --num-gpus 2 --resume SOLVER.MAX_ITER 12 OUTPUT_DIR {output} {TINY}"
    assert "resuming at iteration 10" in run(command, toy_root)
    assert "MAX_ITER: 12\n" in (output / "config.yaml").read_text()
    assert "nothing to do: the run has finished its 12 iterations" in run(command, toy_root)


def test_resume_refuses_another_experiment_but_for_what_is_accepted(pretrained, toy_root):
    options = f"OUTPUT_DIR {pretrained} {TINY} SOLVER.MAX_ITER 20 MOCO.TEMPERATURE 0.3 VIEWS.POLICY autoaugment"
    settings = (pretrained / "config.yaml").read_text()
    line = one_line_error(f"{PRETRAIN} --resume --accept MOCO.TEMPERATURE {options}", toy_root)
    assert "MOCO.TEMPERATURE (0.07 -> 0.3), VIEWS.POLICY (standard_or_autoaugment -> autoaugment)" in line
    assert line.endswith("force it: --resume --accept VIEWS.POLICY")
    assert (pretrained / "config.yaml").read_text() == settings


def test_labels_of_another_order_are_compared_by_name_in_every_process_and_shared_images_are_said(toy_root, tmp_path):
    assert list(CLASS_NAMES) != sorted(CLASS_NAMES)  # of the bank, and of class folders
    same = f"class_folders:{toy_root}/toy_scenes/object_centric/train"
    options = f"KNN_EVAL.BANK toy_objects_train KNN_EVAL.NUM_NEIGHBORS 1 DATASETS.TEST \"('{same}',)\""
    text = run(f"{PRETRAIN} --eval-only --num-gpus 2 OUTPUT_DIR {tmp_path} {TINY} {options}", toy_root)
    assert json.loads((tmp_path / "evaluation.json").read_text())["knn_top1"] == 100
    assert [path.name for path in tmp_path.glob("*.png")] == ["neighbours_0000000.png"]
    images = len(get_records(same))
    assert f"{images} of {images} images of {same} are in KNN_EVAL.BANK toy_objects_train, too: each" in text


@pytest.mark.docs
def test_the_demo_runs_start_to_end(tmp_path):
    command = f"python tools/demo.py --how quick --output {tmp_path}/demo"
    text = run(command, tmp_path)
    assert "| kNN top-1, held-out appearance (%) |" in text and "eta: " in text
    summary = (tmp_path / "demo/summary.md").read_text()
    assert "these numbers mean nothing" in summary
    for picture in ("views.png", "curves.png", "neighbours.png", "video.gif"):
        assert picture in summary and (tmp_path / "demo" / picture).stat().st_size > 10_000
    assert "--output" in one_line_error(command, tmp_path)


def test_bf16_accumulation_and_channels_last_in_pretraining(toy_root, tmp_path):
    switches = f"{SWITCHES} SOLVER.AMP.DTYPE bfloat16 SOLVER.MAX_ITER 8 VIEWS.SMALL_SIZE 24"
    run(f"{PRETRAIN} --num-gpus 2 OUTPUT_DIR {tmp_path} {TINY} {switches}", toy_root)
    metrics = read_metrics(tmp_path / "metrics.json")
    assert metrics["queue_fill"][-1][1] == 100 and metrics["total_loss"][-1][1] > 0
    run(f"python tools/convert_to_d2.py {tmp_path}/model_final.pth {tmp_path}/backbone.pth", toy_root)
    weights = load(tmp_path / "backbone.pth")["model"].values()
    assert all(w.dtype in (torch.float32, torch.int64) and w.is_contiguous() for w in weights)


@pytest.mark.parametrize(("task", "options", "metric", "processes"), [(t, *v) for t, v in TASKS.items()], ids=TASKS)
def test_eval_only_repeats_the_numbers_of_finetuning(task, options, metric, processes, pretrained, toy_root, tmp_path):
    train = f"{TRAIN} configs/toy/{task}.yaml --num-gpus {processes}"
    options += f" {SHORT} OUTPUT_DIR {tmp_path} MODEL.WEIGHTS"
    backbone = pretrained / "backbone.pth"
    assert "100 of 100 backbone tensors loaded" in run(f"{train} {options} {backbone}", toy_root)
    trained = {name: values[-1][1] for name, values in read_metrics(tmp_path / "metrics.json").items()}
    assert 0 < trained["total_loss"] < 100
    at_the_end = (tmp_path / "evaluation.json").read_text()
    (tmp_path / "evaluation.json").unlink()
    settings = (tmp_path / "config.yaml").read_text()
    own = f"OUTPUT_DIR {tmp_path} MODEL.WEIGHTS {tmp_path}/model_final.pth"
    alone = f"python tools/train_net.py --eval-only {own}"  # which the checkpoint says the rest of
    run(f"{train} --eval-only --resume {options} {backbone}" if processes == 2 else alone, toy_root)
    assert (tmp_path / "config.yaml").read_text() == settings
    assert (tmp_path / "evaluation.json").read_text() == at_the_end
    evaluated = json.loads(at_the_end)
    scores = {f"{kind}/{name}": value for kind, scores in evaluated.items() for name, value in scores.items()}
    assert metric in scores
    for name, value in scores.items():
        assert trained[name] == value or (value is None and trained[name] != trained[name]), name  # no box of a size


FEW_BOXES = "MODEL.RPN.PRE_NMS_TOPK_TRAIN 50 MODEL.RPN.POST_NMS_TOPK_TRAIN 20 MODEL.RPN.PRE_NMS_TOPK_TEST 50 "
FEW_BOXES += "MODEL.RPN.POST_NMS_TOPK_TEST 20 TEST.DETECTIONS_PER_IMAGE 10"
OWN = {
    "detection_fpn": ("voc_xml:{toy}/JPEGImages:{toy}/Annotations", "", "bbox/AP50"),
    "mask_rcnn": ("toy_coco_val", "INPUT.MASK_FORMAT bitmask", "segm/AP50"),
    "segmentation": (
        "masks:{toy}/JPEGImages:{toy}/SegmentationClass",
        "INPUT.CROP.SIZE [65,65]",
        "sem_seg/mIoU",
    ),
}


@pytest.mark.parametrize(("recipe", "data", "options", "metric"), [(r, *v) for r, v in OWN.items()], ids=OWN)
def test_own_recipes_learn_from_labels_as_people_have_them(recipe, data, options, metric, toy_root, tmp_path):
    labels = f"\"('{data.format(toy=toy_root / 'toy_scenes/VOC2007')}',)\""
    options += "" if recipe == "segmentation" else f" {DETECTION} INPUT.MIN_SIZE_TRAIN (64,) INPUT.MIN_SIZE_TEST 64"
    options += f" TEST.EVAL_PERIOD 3 {FEW_BOXES}"
    train = f"{TRAIN} configs/own_images/{recipe}.yaml OUTPUT_DIR {tmp_path} "
    test = f"DATASETS.TEST {labels} DATALOADER.NUM_WORKERS 0 {options}"
    text = run(f"{train} DATASETS.TRAIN {labels} {test} {SHORT}", toy_root)
    assert ": classes of " in text and metric in read_metrics(tmp_path / "metrics.json")
    if recipe == "detection_fpn":  # without data to learn from, the checkpoint says how many classes there are
        again = train.replace(" OUTPUT_DIR", " --eval-only OUTPUT_DIR")
        run(f"{again} MODEL.WEIGHTS {tmp_path}/model_final.pth {test} {NARROW}", toy_root)


def test_a_c4_detector_trains_and_is_evaluated_by_two_processes(toy_root, tmp_path):
    text = run(
        f"{TRAIN} configs/detection/voc_faster_rcnn_R50_C4.yaml --num-gpus 2 "
        "DATASETS.TRAIN \"('toy_voc_trainval',)\" DATASETS.TEST \"('toy_voc_test',)\" MODEL.ROI_HEADS.NUM_CLASSES 10 "
        "INPUT.MIN_SIZE_TRAIN (64,) INPUT.MIN_SIZE_TEST 64 SOLVER.MAX_ITER 2 SOLVER.STEPS (1,) SOLVER.IMS_PER_BATCH 2 "
        "MODEL.RESNETS.WIDTH_PER_GROUP 4 MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE 4 MODEL.RPN.POST_NMS_TOPK_TEST 10 "
        f"TEST.PRECISE_BN.NUM_ITER 2 DATALOADER.NUM_WORKERS 0 {NARROW} OUTPUT_DIR {tmp_path}",
        toy_root,
    )
    assert "2 gloo processes" in text and "bbox/AP50" in read_metrics(tmp_path / "metrics.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("DATASETS.TRAIN", "('toy_nyud_depth_train',)"),  # without masks
        ("DATASETS.TEST", "('toy_nyud_segmentation_val',)"),  # of other classes
        ("MODEL.SEM_SEG_HEAD.IGNORE_VALUE", "0"),
    ],
)
def test_impossible_dense_recipes_are_refused_by_key_or_data_set(key, value, toy_datasets):
    named = re.escape(value.strip("(',)") if key.startswith("DATASETS") else key.rpartition(".")[2])
    with pytest.raises(UserError, match=named):
        cfg = make_config("configs/toy/segmentation_voc.yaml", [key, value])
        inspect_training(cfg)
        inspect_evaluation(cfg)


def test_a_dry_run_does_not_take_a_wrong_data_set_for_a_missing_one(toy_datasets):
    cfg = make_config("configs/toy/segmentation_voc.yaml", ["MODEL.SEM_SEG_HEAD.NUM_CLASSES", "12"], for_here=False)
    said = "has 11 classes: add MODEL.SEM_SEG_HEAD.NUM_CLASSES 11 to the command"
    refused(said, inspect_training, cfg, assume_missing=True)


def test_sync_bn_over_processes_of_the_cpu_refuses_bfloat16():
    refused("bfloat16", make_config, "configs/toy/depth.yaml", ["SOLVER.AMP.ENABLED", "True"], num_processes=2)


def test_a_few_unreadable_images_are_replaced_and_named(toy_root, tmp_path):
    images = sorted((toy_root / "toy_scenes/coco/train2017").iterdir())
    for n in range(296):
        data = images[n % len(images)].read_bytes()
        write(tmp_path / f"photos/{n:03d}.jpg", data[: len(data) // 2] if n in (0, 25) else data)
    data = f"DATASETS.TRAIN \"('folder:{tmp_path}/photos',)\""
    text = run(f"{PRETRAIN} {data} OUTPUT_DIR {tmp_path}/out {TINY} SOLVER.EPOCHS 1", toy_root)
    assert all(f"{tmp_path}/photos/{name}" in text for name in ("000.jpg", "025.jpg"))
    assert read_metrics(tmp_path / "out/metrics.json")["read_failures"][-1][1] == 2


def broken_copy(toy_root: Path, folder: Path, num_broken: int) -> str:
    """A command that trains on a new folder of 300 photographs, ``num_broken`` of them, each 25th, cut short."""
    folder.mkdir()
    images = sorted((toy_root / "toy_scenes/coco/train2017").iterdir())
    for n in range(300):
        data = images[n % len(images)].read_bytes()
        (folder / f"{n:03d}.jpg").write_bytes(data[: len(data) // 2] if n % 25 == 0 and n < 25 * num_broken else data)
    return f"{PRETRAIN} DATASETS.TRAIN \"('folder:{folder}',)\" OUTPUT_DIR {folder}/../out {TINY} SOLVER.EPOCHS"


def test_too_many_unreadable_images_stop_the_run(toy_root, tmp_path):
    command = broken_copy(toy_root, tmp_path / "photos", 12).replace("yaml", "yaml --num-gpus 2")
    assert f"{tmp_path}/photos" in one_line_error(f"{command} 3", toy_root)
