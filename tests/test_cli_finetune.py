"""Finetuning as a user types it: every toy task trains, evaluates, and evaluates again to the same numbers."""

import json

import pytest
from commands import one_line_error, run

from revisit.engine.setup import check_evaluation_data, count_images, make_config
from revisit.errors import UserError
from revisit.viz.curves import read_metrics

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
    settings = (tmp_path / "config.yaml").read_text()
    run(command.format(flags="--eval-only", weights=f"{tmp_path}/model_final.pth"), toy_root)
    assert (tmp_path / "config.yaml").read_text() == settings
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
        ("MODEL.SEM_SEG_HEAD.NUM_CLASSES 12", "is 12, but data set 'toy_voc_sem_seg_train_aug' has 11 classes"),
        ("INPUT.RANDOM_SCALE (2.0,0.5)", "expects 0 < low <= high"),
        ("INPUT.RANDOM_SCALE_SAMPLING uniform", "expected one of range, choice"),
        ("INPUT.CROP.TYPE relative", "expect TYPE absolute"),
        ("INPUT.RANDOM_FLIP vertical", "expect horizontal or none"),
        ("INPUT.FORMAT BGR", "expect RGB"),
        ("MODEL.SEM_SEG_HEAD.IN_FEATURES ['res4']", r"expected one of MODEL.RESNETS.OUT_FEATURES \(res5\)"),
        ("MODEL.SEM_SEG_HEAD.ASPP_DILATIONS (6,12)", "ASPP_DILATIONS .*: expected three"),
        ("MODEL.SEM_SEG_HEAD.IGNORE_VALUE 0", "IGNORE_VALUE 0: expected 255"),
        ("SOLVER.OPTIMIZER LAMB", "SOLVER.OPTIMIZER is 'LAMB', expected one of SGD, Adam"),
        ("SOLVER.LR_SCHEDULER_NAME Poly", "expected one of WarmupMultiStepLR, WarmupCosineLR, PolynomialLR"),
        ("MODEL.META_ARCHITECTURE DepthEstimator", "a depth is a single number, expected 1"),
    ],
)
def test_impossible_dense_recipes_end_in_one_line(options, message, toy_datasets):
    with pytest.raises(UserError, match=message):
        cfg = make_config("configs/toy/segmentation_voc.yaml", options.split(maxsplit=1))
        count_images(cfg)
        check_evaluation_data(cfg)


def test_a_dry_run_does_not_take_a_wrong_data_set_for_a_missing_one(toy_datasets):
    opts = ["MODEL.SEM_SEG_HEAD.NUM_CLASSES", "12"]
    cfg = make_config("configs/toy/segmentation_voc.yaml", opts, for_here=False)
    with pytest.raises(UserError, match="has 11 classes"):
        count_images(cfg, assume_missing=True)


def test_sync_bn_over_processes_of_the_cpu_refuses_bfloat16():
    with pytest.raises(UserError, match="loses its variance in bfloat16: expected one process"):
        make_config("configs/toy/depth.yaml", ["SOLVER.AMP.ENABLED", "True"], num_processes=2)


@pytest.mark.parametrize("weights", ["", "MODEL.WEIGHTS {pretrained}/backbone.pth"])
def test_eval_only_refuses_heads_that_were_never_trained(weights, pretrained, toy_root, tmp_path):
    command = f"python tools/train_net.py --config-file configs/toy/segmentation_voc.yaml --eval-only {NARROW} {DENSE}"
    line = one_line_error(f"{command} OUTPUT_DIR {tmp_path} {weights.format(pretrained=pretrained)}", toy_root)
    assert "lacks" in line if weights else "no weights to predict with" in line
    assert not (tmp_path / "evaluation.json").exists()


def test_a_resumed_depth_run_keeps_to_its_learning_rate_schedule(toy_root, tmp_path):
    command = (
        f"python tools/train_net.py --config-file configs/toy/depth.yaml {{flags}} OUTPUT_DIR {tmp_path} {NARROW} "
        f"{DENSE} SOLVER.MAX_ITER 8 SOLVER.CHECKPOINT_PERIOD 6 SOLVER.IMS_PER_BATCH 4 DATASETS.TEST ()"
    )
    run(command.format(flags=""), toy_root)
    for name in ("model_final.pth", "metrics.json"):  # as if it had been killed after iteration 5
        (tmp_path / name).unlink()
    assert "Starting training from iteration 6" in run(command.format(flags="--resume"), toy_root)
    ((iteration, rate),) = read_metrics(tmp_path / "metrics.json")["lr"]
    assert iteration == 7 and rate == pytest.approx(0.001 * (1 - 7 / 8) ** 0.9, rel=1e-6)


def test_readme_bf16_accumulation_and_channels_last_in_segmentation(pretrained, toy_root, tmp_path):
    switches = "SOLVER.AMP.ENABLED True SOLVER.ACCUMULATION_STEPS 2 MODEL.CHANNELS_LAST True"
    command = f"python tools/train_net.py --config-file configs/toy/segmentation_voc.yaml {SHORT} {DENSE} {switches}"
    run(f"{command} MODEL.WEIGHTS {pretrained}/backbone.pth OUTPUT_DIR {tmp_path}", toy_root)
    metrics = read_metrics(tmp_path / "metrics.json")
    assert 0 < metrics["loss_sem_seg"][-1][1] < 10 and "sem_seg/mIoU" in metrics


def test_a_c4_detector_trains_and_is_evaluated_by_two_processes(toy_root, tmp_path):
    text = run(
        "python tools/train_net.py --config-file configs/detection/voc_faster_rcnn_R50_C4.yaml --num-gpus 2 "
        "IMPORTS \"('projects.ToyScenes',)\" "
        "DATASETS.TRAIN \"('toy_voc_trainval',)\" DATASETS.TEST \"('toy_voc_test',)\" MODEL.ROI_HEADS.NUM_CLASSES 10 "
        "INPUT.MIN_SIZE_TRAIN (64,) INPUT.MIN_SIZE_TEST 64 SOLVER.MAX_ITER 2 SOLVER.STEPS (1,) SOLVER.IMS_PER_BATCH 2 "
        "MODEL.RESNETS.WIDTH_PER_GROUP 4 MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE 4 MODEL.RPN.POST_NMS_TOPK_TEST 10 "
        f"TEST.PRECISE_BN.NUM_ITER 2 DATALOADER.NUM_WORKERS 0 {NARROW} OUTPUT_DIR {tmp_path}",
        toy_root,
    )
    assert "2 gloo processes" in text
    assert "bbox/AP50" in read_metrics(tmp_path / "metrics.json")
