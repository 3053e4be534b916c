"""Finetuning as a user types it: every toy task trains, evaluates, and evaluates again to the same numbers."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest
from commands import one_line_error, run

from revisit.engine.setup import check_evaluation_data, count_images, load_config
from revisit.errors import UserError
from revisit.evaluation.curves import read_metrics

NARROW = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"
SHORT = f"SOLVER.MAX_ITER 3 SOLVER.IMS_PER_BATCH 4 {NARROW}"
DETECTION = "SOLVER.STEPS (2,) TEST.PRECISE_BN.NUM_ITER 2"
DENSE = "INPUT.CROP.SIZE [65,65] MODEL.SEM_SEG_HEAD.CONVS_DIM 8"
TASKS = {
    "detection": (DETECTION, "bbox/AP50", 1),
    "segmentation_voc": (DENSE, "sem_seg/mIoU", 2),
    "segmentation_cityscapes": (DENSE, "sem_seg/mIoU", 1),
    "segmentation_nyud": (DENSE, "sem_seg/mIoU", 1),
    "depth": (DENSE, "depth/rmse", 2),
}


def flat(results: dict) -> dict[str, float]:
    return {f"{kind}/{name}": value for kind, scores in results.items() for name, value in scores.items()}


@pytest.mark.parametrize(("task", "options", "metric", "processes"), [(t, *v) for t, v in TASKS.items()], ids=TASKS)
def test_readme_eval_only_repeats_the_numbers_of_training(
    task, options, metric, processes, pretrained, toy_root, tmp_path
):
    command = (
        f"python tools/train_net.py --config-file configs/toy/{task}.yaml --num-gpus {processes} {{flags}} "
        f"MODEL.WEIGHTS {{weights}} OUTPUT_DIR {tmp_path} {SHORT} {options}"
    )
    text = run(command.format(flags="", weights=f"{pretrained}/backbone.pth"), toy_root)
    assert "100 of 100 backbone tensors loaded" in text
    trained = {name: values[-1][1] for name, values in read_metrics(tmp_path / "metrics.json").items()}
    run(command.format(flags="--eval-only", weights=f"{tmp_path}/model_final.pth"), toy_root)
    again = flat(json.loads((tmp_path / "evaluation.json").read_text()))
    assert metric in again
    for name, value in again.items():
        assert trained[name] == value or (value != value and trained[name] != trained[name]), name


def test_weights_that_do_not_fit_stop_a_finetuning_run_by_name(pretrained, toy_root, tmp_path):
    command = (
        f"python tools/train_net.py --config-file configs/toy/segmentation_voc.yaml OUTPUT_DIR {tmp_path} {SHORT} "
        f"MODEL.WEIGHTS {pretrained}/backbone.pth "
    )
    assert "PIXEL_MEAN is [0.0, 0.0, 0.0] here" in one_line_error(f"{command} MODEL.PIXEL_MEAN [0.0,0.0,0.0]", toy_root)
    assert "RES2_OUT_CHANNELS is 16 here and 8 there" in one_line_error(
        f"{command} MODEL.RESNETS.RES2_OUT_CHANNELS 16", toy_root
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("DATASETS.TRAIN ('toy_nyud_depth_train',)", "has no masks, which SemanticSegmentor learns from"),
        ("DATASETS.TEST ('toy_nyud_segmentation_val',)", "NUM_CLASSES is 11, but data set .* has 40 classes"),
        (
            "MODEL.SEM_SEG_HEAD.NUM_CLASSES 12",
            "NUM_CLASSES is 12, but data set 'toy_voc_sem_seg_train_aug' has 11 classes",
        ),
        ("INPUT.RANDOM_SCALE (2.0,0.5)", "expected 0 < low <= high"),
        ("INPUT.CROP.ENABLED False", "images of several sizes make no batch"),
        ("INPUT.CROP.TYPE relative", "crops of absolute pixels"),
        ("SOLVER.OPTIMIZER LAMB", "SOLVER.OPTIMIZER is 'LAMB', expected one of SGD, Adam"),
        ("SOLVER.LR_SCHEDULER_NAME Poly", "expected one of WarmupMultiStepLR, WarmupCosineLR, PolynomialLR"),
    ],
)
def test_impossible_dense_recipes_end_in_one_line(options, message, toy_datasets, monkeypatch):
    args = Namespace(
        config_file="configs/toy/segmentation_voc.yaml", opts=options.split(maxsplit=1), num_gpus=1, num_machines=1,
        resume=False,
    )  # fmt: skip
    with pytest.raises(UserError, match=message):
        cfg = load_config(args)
        count_images(cfg)
        check_evaluation_data(cfg)


def test_a_depth_model_has_one_output(toy_root, tmp_path):
    command = "python tools/train_net.py --config-file configs/toy/depth.yaml MODEL.SEM_SEG_HEAD.NUM_CLASSES 2"
    assert "a depth is a single number, expected 1" in one_line_error(f"{command} OUTPUT_DIR {tmp_path}", toy_root)


def test_readme_transfer_table_lists_its_jobs(pretrained, toy_root, tmp_path):
    command = (
        f"python tools/reproduce.py transfer --weights {pretrained}/backbone.pth --output {tmp_path}/out --dry-run"
    )
    text = run(command, toy_root)
    assert text.count("to do: ") == 5 * 2 * 3
    assert f"MODEL.WEIGHTS {pretrained}/backbone.pth" in text


def test_a_transfer_table_of_one_task(pretrained, toy_root, tmp_path):
    table = run(
        f"python tools/reproduce.py transfer --weights {pretrained}/backbone.pth --output {tmp_path} --seeds 1 "
        f"--only 'NYUD, depth' --opts {SHORT} {DENSE}",
        toy_root,
    )
    assert "| NYUD, depth, rmse (m), lower is better |" in table
    assert (tmp_path / "table.md").read_text().strip() in table
