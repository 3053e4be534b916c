"""The commands of README.md and docs/, as they are typed, on small data and for a few iterations.

Those that another test runs in its own form are only parsed, with their configs made, in test_readme.py.
"""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import timm
from commands import ROOT, TINY, documented, run

from revisit.checkpoint.backbone_file import write_backbone
from revisit.checkpoint.convert import convert
from revisit.checkpoint.named_weights import kept_file

SMALL = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 DATALOADER.NUM_WORKERS 0"
SMALL += " SOLVER.WARMUP_ITERS 0"
OWN = f"SOLVER.MAX_ITER 2 MODEL.RESNETS.DEPTH 18 {TINY} MOCO.BN_GROUP 4 VIEWS.SMALL_SIZE 24"
DETECTION = (
    f"{SMALL} MODEL.RESNETS.DEPTH 18 SOLVER.MAX_ITER 2 SOLVER.STEPS (1,) SOLVER.IMS_PER_BATCH 2 "
    "TEST.PRECISE_BN.NUM_ITER 1 INPUT.MIN_SIZE_TRAIN (64,) INPUT.MIN_SIZE_TEST 64"
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
        x, y = rng.integers(5, 30, size=2).tolist()
        picture[y : y + 25, x : x + 30] = (40, 220, 90)
        images.append({"id": number, "file_name": f"holiday/{number:02d}.jpg", "height": 64, "width": 80})
        cv2.imwrite(str(folder / images[-1]["file_name"]), picture)
        place = {"image_id": number, "category_id": 1 + number % 2, "bbox": [x, y, 30, 25]}
        boxes.append({"id": number + 1, "area": 750, "iscrowd": 0, **place})
    categories = [{"id": 1, "name": "crate"}, {"id": 2, "name": "barrel"}]
    (tmp_path / "boxes.json").write_text(json.dumps({"images": images, "annotations": boxes, "categories": categories}))
    return folder


@pytest.fixture
def imagenet(tmp_path, monkeypatch) -> None:
    """Random weights by the name of ImageNet's, kept as the package's would be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    network = timm.create_model("tf_efficientnet_lite0")
    weights = convert(network.state_dict(), "timm", stated={"MODEL.TIMM.NAME": "tf_efficientnet_lite0"})
    kept_file("imagenet/57934424/efficientnet_lite0.pth", partial(write_backbone, weights))


def walk(page: str, folder: Path, options: dict[str, str], count: int = 7) -> list[str]:
    """Run a page's first ``count`` commands, but those about installing, with ``folder`` for data and outputs, and
    further options by config."""
    printed = []
    commands = [command for command in documented(page) if not re.search("install_detectron2|doctor", command)]
    for command in commands[:count]:
        command += "".join(f" {added}" for name, added in options.items() if f"/{name}.yaml" in command)
        for old, new in (("/data", "@"), ("$DETECTRON2_DATASETS", "@"), (" output", " @/output"), ("@", str(folder))):
            command = command.replace(old, new)
        printed.append(run(command, folder))
    return printed


def test_readme_from_a_folder_to_a_detector(photos, tmp_path):
    boxes = f"\"('coco:{photos}:{tmp_path}/boxes.json',)\""
    own = f"DATASETS.TRAIN {boxes} DATASETS.TEST {boxes} MODEL.ROI_HEADS.NUM_CLASSES 2"
    printed = walk("README.md", tmp_path, {"knn_moco": OWN, "voc_faster_rcnn_R50_C5": f"{DETECTION} {own}"}, count=3)
    assert "2 gloo processes" in printed[0] and "100 of 100 backbone tensors loaded" in printed[2]


def found_and_learned(page: str, folder: Path, images: str) -> list[str]:
    """Run a page's commands that find boxes in ``images`` and learn them; the page's other commands, to be run."""
    commands = []
    for command in documented(page):
        command = command.replace(images, f"{folder}/photos").replace("/data/", f"{folder}/")
        commands.append(re.sub(r"([ :=])output", rf"\1{folder}/output", command))
    (find,) = (each for each in commands if "tools/discover.py" in each)
    (learn,) = (each for each in commands if "boxes.yaml" in each)
    run(f"{find} --short-side 64 --boxes 3", folder)
    run(f"{learn} {DETECTION} MODEL.DEVICE cpu", folder)
    return [each for each in commands if each not in (find, learn)]


@pytest.mark.usefixtures("photos", "imagenet")
def test_own_images_with_few_labels_begin_with_found_boxes(tmp_path):
    others = found_and_learned("docs/own-images.md", tmp_path, "/data/photos")
    (finetune,) = (each for each in others if "output/boxes/model_final.pth" in each)
    finetune = finetune.replace("more_photos", "photos").replace("more_boxes", "boxes")
    text = run(f"{finetune} {DETECTION} MODEL.DEVICE cpu", tmp_path)
    assert re.search(r"(\d+) of \1 backbone tensors loaded", text) and "proposal_generator 6 of 6" in text
    (compare,) = (each for each in others if "--unlabelled" in each)
    compare = compare.replace("more_photos", "photos").replace("more_boxes", "boxes")
    text = run(compare.replace("--labels", "--dry-run --labels"), tmp_path)
    assert "12 jobs" in text and "boxes + teacher, 15 labels, seed 3 (600 iterations of 4 images)" in text
    assert "16 images of coco:" in text and "are among DATASETS.UNLABELLED" in text  # the page has other test images


@pytest.mark.usefixtures("photos", "imagenet")
def test_readme_compares_imagenet_with_found_boxes(toy_root, tmp_path):
    others = found_and_learned("README.md", tmp_path, "/data/cells/train")
    (compare,) = (each for each in others if "compare_starts" in each)
    tree = f"{toy_root}/toy_scenes/VOC2007"
    for name in ("photos", "cells/test"):
        place = f"{tmp_path}/{name}:{tmp_path}/cells/Annotations"
        compare = compare.replace(place, f"{tree}/JPEGImages:{tree}/Annotations")
    text = run(f"{compare.replace('--labels', '--dry-run --labels')} MODEL.ROI_HEADS.NUM_CLASSES 10", toy_root)
    assert "12 jobs" in text and "boxes, 15 labels, seed 3 (2,000 iterations of 4 images)" in text


@pytest.mark.usefixtures("imagenet")
def test_own_images_begin_with_imagenet_weights(photos, tmp_path):
    commands = [each for each in documented("docs/own-images.md") if "WEIGHTS imagenet:" in each]
    detect, go_on = (
        each.replace("/data", str(tmp_path)).replace(" output", f" {tmp_path}/output") for each in commands
    )
    text = run(f"{detect} {DETECTION} MODEL.DEVICE cpu", tmp_path)
    assert re.search(r"(\d+) of \1 backbone tensors loaded", text)
    learned, converted = (each for each in documented("docs/own-images.md") if "objects_from" in each)
    learned, converted = (f"{each.replace(' output', f' {tmp_path}/output')}" for each in (learned, converted))
    text = run(f"{learned.replace('/data', str(tmp_path))} {OWN} MOCO.QUEUE_SIZE 64 MODEL.DEVICE cpu", tmp_path)
    assert re.search(r"(\d+) of \1 backbone tensors loaded", text)
    assert "of pyramid and box head" in run(converted, tmp_path)
    text = run(f"{go_on} MODEL.DEVICE cpu SOLVER.MAX_ITER 2 KNN_EVAL.NUM_NEIGHBORS 5 {TINY}", tmp_path)
    assert "before the first step" in text and "training has taken rankme from" in text
    assert "nobody can say: DATASETS.TEST is empty" in text.splitlines()[-1]


def test_own_images_from_a_folder_to_a_detector(photos, tmp_path):
    options = {"pretrain": OWN, "detection": DETECTION}
    printed = walk("docs/own-images.md", tmp_path, options, count=7)
    for text in printed[:2]:  # the dry run and the training
        assert "SimCLR never reads MOCO.QUEUE_SIZE" in text
    own = tmp_path / "output/own"
    assert (own / "pretrain/views.png").is_file() and "<h3>Pretraining</h3>" in (own / "report.html").read_text()
    assert "bbox/AP-crate" in (own / "detection/metrics.json").read_text()
    page = (own / "detection.html").read_text()
    assert '<section id="detections">' in page and "most errors first" in page
    assert (own / "detection/photos_boxes_01.png").is_file()
    probe = documented("docs/own-images.md")[7]
    text = run(f"{probe.replace('/data', str(tmp_path)).replace('output/', f'{tmp_path}/output/')} {SMALL}", tmp_path)
    assert "| detection |" in text and "| backbone |" in text
    compare = documented("docs/own-images.md")[9].replace("--labels 25 50 100", "--dry-run --labels 8")
    text = run(f"{compare.replace('/data', str(tmp_path)).replace(' output', f' {tmp_path}/output')} {SMALL}", tmp_path)
    assert "12 jobs, 0 done" in text and "random weights, 8 labels, seed 3 (600 iterations of 4 images)" in text
    for name in ("train", "test"):
        for number in range(16):
            target = tmp_path / name / f"kind_{number % 2}" / f"{number:02d}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(photos / f"holiday/{number:02d}.jpg", target)
    frozen = documented("docs/own-images.md")[10].replace("--labels 50 200", "--dry-run --labels 10")
    frozen = f"{frozen.replace('/data', str(tmp_path)).replace(' output', f' {tmp_path}/output')} {SMALL}"
    assert "frozen features" in run(f"{frozen} MODEL.RESNETS.DEPTH 18", tmp_path)
    rest = documented("docs/own-images.md")[11:]
    rest = [command for command in rest if "imagenet:" not in command and "objects_from" not in command]
    commands = [command.replace("/data", str(tmp_path)) for command in rest]
    predict, export, *objects = (command.replace(" output", f" {tmp_path}/output") for command in commands)
    assert "16 of 16 files: pictures and JSON" in run(predict, tmp_path)
    assert [category["name"] for category in json.loads((own / "found/images.json").read_text())["categories"]] == [
        "crate",
        "barrel",
    ]
    assert "image -> boxes, scores, classes" in run(export, tmp_path)
    text = run(f"{objects[0]} {OWN} MOCO.QUEUE_SIZE 64", tmp_path)
    assert list((own / "objects").glob("neighbours_objects_*.png"))
    run(objects[1], tmp_path)
    text = run(f"{objects[2]} {DETECTION}", tmp_path)
    assert "40 of 40 pyramid tensors loaded" in text and "4 of 4 box head tensors loaded" in text


def test_extending_shows_what_runs(toy_root, tmp_path, monkeypatch):
    method, column = documented("docs/extending.md")
    monkeypatch.syspath_prepend(f"{ROOT}/tests/extension")
    assert "SIMSIAM.PREDICTOR_DIM" in run(f"{method} OUTPUT_DIR {tmp_path}", toy_root)
    assert "VOC_SVM_mAP" in run(f"{column} --output {tmp_path}", toy_root)


@pytest.mark.usefixtures("photos", "imagenet")
def test_label_check_shows_what_runs(tmp_path):
    commands = [each.replace("/data", f"{tmp_path}") for each in documented("projects/LabelCheck/README.md")]
    commands = [re.sub(r"([ :=])output", rf"\1{tmp_path}/output", each) for each in commands]
    commands = [each.replace("50:100:1", "8:16:1").replace("0:50:1", "0:8:1") for each in commands]
    check, *train, again, accept = commands
    options = f"{DETECTION} MODEL.DEVICE cpu"
    text = run(f"{check} --short-side 64 --workers 0 {options}", tmp_path)
    assert "2 jobs, 0 done before" in text and "suspects.html, .csv, .json and .png are in" in text
    continued = run(f"{check} --short-side 64 --workers 0 {options}", tmp_path)
    assert "2 jobs, 2 done before" in continued and "is there already" in continued
    for command in train:
        run(f"{command} {options}", tmp_path)
    assert "suspects" in run(f"{again} --short-side 64 --workers 0", tmp_path)
    rows = (tmp_path / "output/suspects/suspects.csv").read_text().splitlines()
    swapped = [row for row in rows[1:] if ",swapped," in row]
    (tmp_path / "accepted.csv").write_text("\n".join([rows[0], *swapped[:2]]) + "\n")
    accept = accept.replace("accepted.csv", f"{tmp_path}/accepted.csv")
    assert f"{len(swapped[:2])} corrections are in" in run(accept, tmp_path)
