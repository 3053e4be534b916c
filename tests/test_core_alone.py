"""The core without any project: it plans, pretrains, resumes, converts what it has trained, and finetunes from that."""

import json
import shutil
from pathlib import Path

import pytest
from commands import ROOT, TINY, run_in

SMALL = "DATALOADER.NUM_WORKERS 0 SOLVER.MAX_ITER 2 SOLVER.STEPS () SOLVER.WARMUP_ITERS 1 TEST.EVAL_PERIOD 0"
SMALL_RESNET = "MODEL.RESNETS.DEPTH 18 MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> Path:
    """A checkout whose projects are gone: importing one is an error, even where they are installed."""
    folder = tmp_path_factory.mktemp("core")
    for name in ("revisit", "tools", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "projects").mkdir()
    (folder / "projects/__init__.py").write_text("raise ImportError('the core imports a project')\n")
    return folder


def run(core: Path, command: str, expect: int = 0) -> str:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(core), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return run_in(core, environment, f"python {command}", expect)


def test_a_dry_run_is_shorter_without_projects(core, toy_root):
    """No cost and no pictures, and a length in minutes is no key."""
    images = f"class_folders:{toy_root}/toy_scenes/object_centric/train"
    plan = "tools/train_net.py --config-file configs/pretrain/knn_moco.yaml --dry-run "
    plan += f"DATASETS.TRAIN \"('{images}',)\" OUTPUT_DIR {core}/plan {TINY} {SMALL_RESNET}"
    assert "wrote" in run(core, plan)
    recipe = json.loads((core / "plan/dry_run.json").read_text())
    assert recipe["architecture"] == "KNNMoCo" and recipe["data"]["found"] and recipe["iterations"] > 0
    assert recipe.keys().isdisjoint({"shapes", "memory_gib_per_process", "tflop_per_step", "gpu_hours", "loading"})
    assert [path.name for path in (core / "plan").iterdir()] == ["dry_run.json"]
    assert "unknown config key SOLVER.MINUTES" in run(core, f"{plan} SOLVER.MINUTES 5", expect=2)


@pytest.fixture(scope="module")
def backbone(core, toy_root) -> Path:
    """kNN-MoCo on two processes, interrupted after 4 of 6 iterations, resumed, converted."""
    images = f"class_folders:{toy_root}/toy_scenes/object_centric/train"
    data = f"DATASETS.TRAIN \"('{images}',)\" DATASETS.TEST \"('{images}',)\" KNN_EVAL.BANK {images}"
    train = f"tools/train_net.py --config-file configs/pretrain/knn_moco.yaml --num-gpus 2 {{}} {data} {TINY}"
    train += f" {SMALL_RESNET} SOLVER.EPOCHS 0 SOLVER.CHECKPOINT_PERIOD 2 SOLVER.MAX_ITER {{}} OUTPUT_DIR {core}/run"
    assert "kNN top-1" in run(core, train.format("", 4))
    assert "resuming" in run(core, train.format("--resume", 6))
    run(core, f"tools/convert_to_d2.py {core}/run/model_final.pth {core}/backbone.pth")
    return core / "backbone.pth"


def test_a_project_cannot_be_imported_there(core):
    (core / "imports.py").write_text("import revisit.errors, projects.Pictures\n")
    assert "ImportError: the core imports a project" in run(core, "imports.py", expect=1)


def test_faster_rcnn_c5_finetunes_without_projects(core, backbone, toy_root):
    scenes = toy_root / "toy_scenes/coco"
    data = f"('coco:{scenes}/val2017:{scenes}/annotations/instances_val2017.json',)"
    text = run(
        core,
        f"tools/train_net.py --config-file configs/detection/voc_faster_rcnn_R50_C5.yaml {SMALL_RESNET} {SMALL} "
        f'DATASETS.TRAIN "{data}" DATASETS.TEST "{data}" MODEL.ROI_HEADS.NUM_CLASSES 10 SOLVER.IMS_PER_BATCH 2 '
        f"INPUT.MIN_SIZE_TRAIN (64,) INPUT.MIN_SIZE_TEST 64 TEST.PRECISE_BN.ENABLED False "
        f"MODEL.RPN.POST_NMS_TOPK_TEST 20 MODEL.WEIGHTS {backbone} OUTPUT_DIR {core}/detection",
    )
    assert "bbox" in text


def test_fcn_finetunes_without_projects(core, backbone, toy_root):
    tree = toy_root / "toy_scenes/VOC2007"
    text = run(
        core,
        f"tools/train_net.py --config-file configs/segmentation/voc_fcn_R50.yaml {SMALL_RESNET} {SMALL} "
        f"DATASETS.TRAIN \"('voc_segmentation:{tree}:train_aug',)\" DATASETS.TEST \"('voc_segmentation:{tree}:val',)\" "
        f'SOLVER.EPOCHS 0 SOLVER.STEP_EPOCHS () SOLVER.IMS_PER_BATCH 2 INPUT.CROP.SIZE "[65, 65]" '
        f"MODEL.SEM_SEG_HEAD.CONVS_DIM 8 MODEL.WEIGHTS {backbone} OUTPUT_DIR {core}/segmentation",
    )
    assert "mIoU" in text
