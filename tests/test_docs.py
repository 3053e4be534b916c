"""The commands of README.md and docs/, as they are typed, on small data and for a few iterations."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from commands import ROOT, TINY, documented, run

from revisit.checkpoint.reading import read_checkpoint

SMALL = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 DATALOADER.NUM_WORKERS 0"
PRETRAINING = (
    f"{SMALL} SOLVER.MAX_ITER 2 SOLVER.IMS_PER_BATCH 8 MOCO.QUEUE_SIZE 50 VIEWS.LARGE_SIZE 32 VIEWS.SMALL_SIZE 24 "
    "MODEL.RESNETS.DEPTH 18"
)
DETECTION = (
    f"{SMALL} SOLVER.MAX_ITER 4 SOLVER.STEPS (2,3) SOLVER.IMS_PER_BATCH 2 INPUT.MIN_SIZE_TRAIN (64,) "
    "INPUT.MIN_SIZE_TEST 64 TEST.PRECISE_BN.NUM_ITER 1 MODEL.RESNETS.DEPTH 18"
)


@pytest.fixture
def photos(tmp_path) -> Path:
    """Sixteen pictures with a bright rectangle each, and its box in COCO's format."""
    folder = tmp_path / "photos"
    (folder / "holiday").mkdir(parents=True)
    rng = np.random.default_rng(0)
    images, boxes = [], []
    for number in range(16):
        picture = rng.integers(0, 120, (64, 80, 3), dtype=np.uint8)
        x, y = rng.integers(5, 30, size=2)
        picture[y : y + 25, x : x + 30] = (40, 220, 90)
        name = f"holiday/{number:02d}.jpg" if number % 2 else f"{number:02d}.jpg"
        cv2.imwrite(str(folder / name), picture)
        images.append({"id": number, "file_name": name, "height": 64, "width": 80})
        place = {"image_id": number, "category_id": 1 + number % 2, "bbox": [int(x), int(y), 30, 25]}
        boxes.append({"id": number + 1, "area": 750, "iscrowd": 0, **place})
    categories = [{"id": 1, "name": "crate"}, {"id": 2, "name": "barrel"}]
    (tmp_path / "boxes.json").write_text(json.dumps({"images": images, "annotations": boxes, "categories": categories}))
    return folder


def test_readme_from_a_folder_to_a_detector(photos, tmp_path):
    boxes = f"('coco:{photos}:{tmp_path}/boxes.json',)"
    own = f"DATASETS.TRAIN {boxes} DATASETS.TEST {boxes} MODEL.ROI_HEADS.NUM_CLASSES 2"
    said = []
    for command, options in zip(documented("README.md"), (PRETRAINING, "", f"{DETECTION} {own}"), strict=True):
        command = f"{command} {options}".replace("/data/", f"{tmp_path}/").replace("output/", f"{tmp_path}/")
        said.append(run(command, tmp_path))
    assert "2 gloo processes" in said[0] and "100 of 100 backbone tensors loaded" in said[2]


def test_own_images_from_a_folder_to_a_detector(photos, tmp_path):
    added = {"own_images/pretrain": PRETRAINING, "own_images/detection": f"{DETECTION} MODEL.ROI_HEADS.NUM_CLASSES 2"}
    said = []
    for command in documented("docs/own-images.md"):
        options = next((options for config, options in added.items() if config in command), "")
        command = f"{command} {options}".replace("/data/", f"{tmp_path}/").replace("output/own", f"{tmp_path}/own")
        said.append(run(command, tmp_path))
    for text in said[:2]:  # the dry run and the training
        assert "MOCO.QUEUE_SIZE 50 is 3.1 times the 16 images" in text
    own = tmp_path / "own"
    assert (own / "dry_run/views.png").is_file() and (own / "report.html").stat().st_size > 1e6
    scores = json.loads((own / "detection/metrics.json").read_text().splitlines()[-1])
    assert "bbox/AP" in scores and "bbox/AP-crate" in scores
    trained = read_checkpoint(own / "detection/model_final.pth")["model"]
    assert any(key.startswith("backbone.") for key in trained)
    assert (own / "pictures/boxes_01.png").is_file()


def test_training_a_first_run_without_data(tmp_path):
    detection = f"{SMALL} SOLVER.IMS_PER_BATCH 4 TEST.PRECISE_BN.NUM_ITER 1 MODEL.BACKBONE.FREEZE_AT 0"
    options = {"configs/toy/pretrain": TINY, "configs/toy/detection": detection}
    first = documented("docs/training.md")[:7]
    for command in first:
        added = next((value for config, value in options.items() if config in command), "")
        command = command.replace("$DETECTRON2_DATASETS", str(tmp_path)).replace("MAX_ITER 10", "MAX_ITER 2")
        if "train_net.py" in command:
            added += f" OUTPUT_DIR {tmp_path}/output/toy/{'detection' if 'detection' in command else 'pretrain'}"
        run(f"{command} {added}".replace(" output/", f" {tmp_path}/output/"), tmp_path)
    assert len(list((tmp_path / "toy_scenes/coco/train2017").iterdir())) == 60
    output = tmp_path / "output"
    left = ("toy/pretrain/views.png", "toy/pretrain/environment.json", "toy/backbone.yaml", "report.html")
    assert [name for name in left if not (output / name).is_file()] == []
    assert list((output / "pictures").glob("*.png"))


def test_extending_what_it_shows_runs(toy_root, tmp_path):
    method, column = documented("docs/extending.md")
    path = f"PYTHONPATH={ROOT}:{ROOT}/tests/extension"
    text = run(f"{method.replace('python', f'env {path} {sys.executable}', 1)} OUTPUT_DIR {tmp_path}", toy_root)
    assert json.loads((tmp_path / "dry_run.json").read_text()) and "negatives" in text
    assert "VOC_SVM_mAP" in run(f"{column} --output {tmp_path}", toy_root)


def test_faults_the_cures_are_commands_that_run(photos, toy_root, tmp_path):
    shuffle, judge, measure, _, _ = documented("docs/faults.md")
    options = f"{SMALL} DATASETS.TRAIN \"('folder:{photos}',)\" SOLVER.IMS_PER_BATCH 16 OUTPUT_DIR {tmp_path}/dry"
    run(f"{shuffle} {options}", toy_root)
    # Real VOC is not here: the toy config asks the same of ToyScenes.
    judge = judge.replace("voc07_svm.yaml", "toy.yaml").replace("output/backbone.pth", "random")
    assert "top1 of" in run(judge.replace("output/voc07_svm", f"{tmp_path}/svm"), toy_root)
    measure = measure.replace("/data/photos", str(photos)).replace("--images 128", "--images 4")
    assert "ratio" in run(f"{measure} DATALOADER.NUM_WORKERS 0", toy_root)
