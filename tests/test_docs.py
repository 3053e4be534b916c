"""The commands of README.md and docs/, as they are typed, on small data and for a few iterations.

`make test` walks README.md's and parses the others, in test_readme.py, with their configs made; `make check-docs` runs
these, too, but those that another test runs in its own form.
"""

import contextlib
import io
import itertools
import json
import re
import shlex
import shutil
import subprocess
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
import timm
import torch
from commands import ROOT, TINY, documented, popen, run
from geotiffs import geo_keys, tie
from pydicom.data import get_testdata_files

import revisit
from projects.Tiles.map_files import write_map
from revisit.checkpoint.backbone_file import write_backbone
from revisit.checkpoint.convert import convert
from revisit.checkpoint.named_weights import kept_file

START, CHOICE = "docs/start.md", "docs/choosing-a-start.md"
SMALL = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 DATALOADER.NUM_WORKERS 0"
SMALL += " SOLVER.WARMUP_ITERS 0"
OWN = f"SOLVER.MAX_ITER 2 MODEL.RESNETS.DEPTH 18 {TINY} MOCO.BN_GROUP 4 VIEWS.SMALL_SIZE 24"
DETECTION = (
    f"{SMALL} MODEL.RESNETS.DEPTH 18 SOLVER.MAX_ITER 2 SOLVER.STEPS (1,) SOLVER.IMS_PER_BATCH 2 "
    "TEST.PRECISE_BN.NUM_ITER 1 TEST.EVAL_PERIOD 2 INPUT.MIN_SIZE_TRAIN (64,) INPUT.MIN_SIZE_TEST 64 "
    "MODEL.RPN.PRE_NMS_TOPK_TRAIN 50 MODEL.RPN.POST_NMS_TOPK_TRAIN 20 "
    "MODEL.RPN.PRE_NMS_TOPK_TEST 50 MODEL.RPN.POST_NMS_TOPK_TEST 20"
)
ON_CPU = f"{DETECTION} MODEL.DEVICE cpu TEST.DETECTIONS_PER_IMAGE 3"  # drawing takes longer than finding


@pytest.fixture
def photos(tmp_path) -> Path:
    """Sixteen pictures with a rectangle each, of its class's colour, and its box in COCO's format."""
    folder = tmp_path / "photos"
    (folder / "holiday").mkdir(parents=True)
    rng = np.random.default_rng(0)
    images, boxes = [], []
    for number in range(16):
        picture = rng.integers(0, 120, (64, 80, 3), dtype=np.uint8)
        x, y = rng.integers(5, 30, size=2).tolist()
        picture[y : y + 25, x : x + 30] = ((40, 220, 90), (220, 60, 200))[number % 2]
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
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = timm.create_model("tf_efficientnet_lite0")
    weights = convert(network.state_dict(), "timm", stated={"MODEL.TIMM.NAME": "tf_efficientnet_lite0"})
    kept_file("imagenet/57934424/efficientnet_lite0.pth", partial(write_backbone, weights))


def on_photos(command: str, folder: Path) -> str:
    """A page's command with ``folder`` for data and outputs, and its photographs for the test's."""
    command = re.sub(r"/data(?=[/:])", str(folder), command.replace("more_", ""))
    return re.sub(r"(?<=[ :])output", f"{folder}/output", command)


def walk(page: str, folder: Path, options: dict[str, str], *, first: int = 0, count: int) -> list[str]:
    """Run ``count`` of a page's commands, but those about installing, with ``folder`` for data and outputs, and
    further options by config."""
    printed = []
    commands = [command for command in documented(page) if not re.search("install_detectron2|doctor", command)]
    for command in commands[first : first + count]:
        command += "".join(f" {added}" for name, added in options.items() if f"/{name}.yaml" in command)
        for old, new in (
            ("more_", ""),
            ("/data", "@"),
            ("$DETECTRON2_DATASETS", "@"),
            (" output", " @/output"),
            ("@", str(folder)),
        ):
            command = command.replace(old, new)
        printed.append(run(command, folder))
    return printed


def test_readme_from_a_folder_to_a_detector(photos, tmp_path):
    boxes = f"\"('coco:{photos}:{tmp_path}/boxes.json',)\""
    own = f"DATASETS.TRAIN {boxes} DATASETS.TEST {boxes} MODEL.ROI_HEADS.NUM_CLASSES 2"
    options = {"knn_moco": OWN, "voc_faster_rcnn_R50_C5": f"{DETECTION} {own}"}
    printed = walk("README.md", tmp_path, options, count=3)
    assert "2 gloo processes" in printed[0] and "100 of 100 backbone tensors loaded" in printed[2]


def run_python_of(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a page's code in Python, with a short training; what it prints."""
    (code,) = re.findall(r"^```python\n(.+?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    keys = shlex.split(ON_CPU)
    short = partial(revisit.finetune, **dict(zip(keys[::2], keys[1::2], strict=True)))
    with monkeypatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setattr(subprocess, "Popen", popen)
        patch.setattr(revisit, "finetune", short)
        patch.setattr(revisit, "predict", partial(revisit.predict, score_threshold=0))
        exec(code.replace("/data", str(folder)), {})
    return printed.getvalue()


A_LINE = re.compile(r"^\S+\.jpg (crate|barrel) 0\.\d+ \(", re.MULTILINE)  # of a prediction


@pytest.mark.docs
@pytest.mark.usefixtures("photos", "imagenet")
def test_readme_and_few_labels_begin_with_found_boxes(tmp_path, monkeypatch):
    find, learn = documented("README.md")[3:5]
    others = documented(CHOICE)
    assert find == documented(START)[0] and sorted(learn.split()) == sorted(
        next(each for each in others if "boxes.yaml" in each).split()
    )
    run(f"{on_photos(find, tmp_path)} --short-side 64 --count 3", tmp_path)
    run(f"{on_photos(learn, tmp_path)} {ON_CPU}", tmp_path)
    assert A_LINE.search(run_python_of("README.md", tmp_path, monkeypatch))
    finetune, label, train = (
        on_photos(each, tmp_path) for each in others if "output/boxes/model_final.pth" in each or "self_label" in each
    )
    text = run(f"{finetune} {ON_CPU}", tmp_path)
    assert re.search(r"(\d+) of \1 backbone tensors loaded", text) and "proposal_generator 6 of 6" in text
    label = label.replace("--labelled ", "--labelled subset:8:1:").replace("0.7", "0.01")
    assert "8 of 16 images are labelled in" in run(f"{label} MODEL.DEVICE cpu", tmp_path)
    text = run(f"{train} {ON_CPU}", tmp_path)
    assert re.search(r"labelled/data_set.json.: 8 of 8 images looked at", text)
    (compare,) = (each for each in others if "--unlabelled" in each)
    text = run(on_photos(compare, tmp_path).replace("--labels", "--dry-run --labels"), tmp_path)
    assert "12 jobs" in text and "boxes + teacher, 15 labels, seed 3 (600 iterations of 4 images)" in text
    assert "16 images of coco:" in text and "are among DATASETS.UNLABELLED" in text  # the page has other test images


@pytest.mark.docs
@pytest.mark.usefixtures("photos", "imagenet")
def test_the_start_from_photographs_to_an_exported_detector(tmp_path, monkeypatch):
    short = {"embed": "--size 64", "train_net": ON_CPU, "predict": "--score-threshold 0"}
    printed = ""
    for command in documented(START)[1:8]:  # the first is README's
        command = on_photos(command, tmp_path).replace("--count 50", "--count 8")
        printed += run(f"{command} {short.get(Path(command.split()[1]).stem, '')}", tmp_path)
    page = (tmp_path / "output/detector.html").read_text()
    assert '<section id="detections">' in page and "most errors first" in page
    assert "bbox/AP-crate" in (tmp_path / "output/detector/metrics.json").read_text()
    assert (tmp_path / "output/detector/photos_boxes_01.png").is_file()
    assert "16 of 16 files: pictures and JSON" in printed and "image -> boxes, scores, classes" in printed
    found = json.loads((tmp_path / "output/predicted/images.json").read_text())
    assert [category["name"] for category in found["categories"]] == ["crate", "barrel"]
    assert len((tmp_path / "output/to_label/selected.txt").read_text().splitlines()) == 8
    assert (tmp_path / "output/detector.ts").is_file()
    assert A_LINE.search(run_python_of(START, tmp_path, monkeypatch))


@pytest.mark.docs
@pytest.mark.usefixtures("imagenet")
def test_own_images_begin_with_imagenet_weights(photos, tmp_path):
    commands = [each for each in documented(CHOICE) if "WEIGHTS imagenet:" in each]
    detect, go_on = (on_photos(each, tmp_path) for each in commands)
    text = run(f"{detect} {DETECTION} MODEL.DEVICE cpu", tmp_path)
    assert re.search(r"(\d+) of \1 backbone tensors loaded", text)
    learned, converted = (each for each in documented(CHOICE) if "objects_from" in each)
    learned, converted = (f"{each.replace(' output', f' {tmp_path}/output')}" for each in (learned, converted))
    text = run(f"{learned.replace('/data', str(tmp_path))} {OWN} MOCO.QUEUE_SIZE 64 MODEL.DEVICE cpu", tmp_path)
    assert re.search(r"(\d+) of \1 backbone tensors loaded", text)
    assert "of pyramid and box head" in run(converted, tmp_path)
    text = run(f"{go_on} MODEL.DEVICE cpu SOLVER.MAX_ITER 2 KNN_EVAL.NUM_NEIGHBORS 5 {TINY}", tmp_path)
    assert "before the first step" in text and "training has taken rankme from" in text
    assert "nobody can say: DATASETS.TEST is empty" in text.splitlines()[-1]


@pytest.mark.docs
@pytest.mark.usefixtures("imagenet")
def test_own_images_from_a_folder_to_a_detector(photos, tmp_path):
    options = {"pretrain": OWN, "detection": DETECTION}
    printed = walk(START, tmp_path, options, first=8, count=5)
    for text in printed[:2]:  # the dry run and the training
        assert "SimCLR never reads MOCO.QUEUE_SIZE" in text
    own = tmp_path / "output/own"
    assert (own / "pretrain/views.png").is_file() and "<h3>Pretraining</h3>" in (own / "report.html").read_text()
    assert "bbox/AP-crate" in (own / "detection/metrics.json").read_text()
    probe, _, compare, frozen, *rest = documented(CHOICE)
    text = run(f"{on_photos(probe, tmp_path)} {SMALL}", tmp_path)
    assert "| detection |" in text and "| backbone |" in text
    compare = on_photos(compare, tmp_path).replace("--labels 25 50 100", "--dry-run --labels 8")
    text = run(f"{compare} {SMALL}", tmp_path)
    assert "12 jobs, 0 done" in text and "random weights, 8 labels, seed 3 (600 iterations of 4 images)" in text
    for name in ("train", "test"):
        for number in range(16):
            target = tmp_path / name / f"kind_{number % 2}" / f"{number:02d}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(photos / f"holiday/{number:02d}.jpg", target)
    (classify,) = documented("docs/tasks/classification.md")
    assert "top1 of class_folders:" in run(f"{on_photos(classify, tmp_path)} LINEAR.IMAGE_SIZE 64", tmp_path)
    frozen = on_photos(frozen, tmp_path).replace("--labels 50 200", "--dry-run --labels 10")
    assert "frozen features" in run(f"{frozen} {SMALL} MODEL.RESNETS.DEPTH 18", tmp_path)
    rest = [each for each in rest if "imagenet:" not in each and "objects_from" not in each]
    objects = [on_photos(each, tmp_path) for each in rest]
    text = run(f"{objects[0]} {OWN} MOCO.QUEUE_SIZE 64", tmp_path)
    assert list((own / "objects").glob("neighbours_objects_*.png"))
    run(objects[1], tmp_path)
    text = run(f"{objects[2]} {DETECTION}", tmp_path)
    assert "40 of 40 pyramid tensors loaded" in text and "4 of 4 box head tensors loaded" in text


@pytest.mark.usefixtures("photos", "imagenet")
def test_the_page_of_the_api_finds_similar_images_and_has_a_training_loop(tmp_path, monkeypatch, capsys):
    _, similar, loop = re.findall(
        r"^```python\n(.+?)^```", (ROOT / "docs/api.md").read_text(), re.MULTILINE | re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    exec(similar, {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and lines[0] == "1.000 photos/holiday/00.jpg"
    exec(loop, names := {})
    images = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    backbone, classifier = names["train"]("imagenet:efficientnet_lite0", [(images, torch.arange(4))] * 2, 4)
    start = revisit.load_backbone("imagenet:efficientnet_lite0")
    moved = [not torch.equal(old, new) for old, new in zip(start.parameters(), backbone.parameters(), strict=True)]
    assert all(moved) and classifier.weight.shape[0] == 4


@pytest.mark.docs
def test_whether_pretraining_helps_is_asked_of_images_set_aside(photos, tmp_path):
    for number, path in enumerate(sorted(photos.glob("holiday/*"))):
        for side in ("train", "test"):
            target = tmp_path / side / f"kind_{number % 2}" / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    commands = [on_photos(each, tmp_path) for each in documented("projects/CompareStarts/on-my-data.md")]
    split, pretrain, convert_it, choose, frozen = commands
    assert "test" in run(split, tmp_path)
    run(f"{pretrain} {OWN}", tmp_path)
    run(convert_it, tmp_path)
    text = run(f"{choose.replace('--time', '--dry-run --time')} {DETECTION}", tmp_path)
    assert "10 images a class, or all of a class that has fewer: " in text
    text = run(f"{frozen.replace('5/class 10/class 20/class', '2/class').replace('2 3 4 5', '2')} {SMALL}", tmp_path)
    assert "2 images a class, or all of a class that has fewer: 4 images" in text and "| random weights |" in text


def test_extending_shows_what_runs(toy_root, tmp_path, monkeypatch):
    method, column = documented("docs/extending.md")
    monkeypatch.syspath_prepend(f"{ROOT}/tests/extension")
    run(f"{method} OUTPUT_DIR {tmp_path}", toy_root)
    assert "SIMSIAM.PREDICTOR_DIM" in (tmp_path / "dry_run.json").read_text()
    assert "VOC_SVM_mAP" in run(f"{column} --output {tmp_path}", toy_root)


@pytest.mark.docs
@pytest.mark.usefixtures("photos", "imagenet")
def test_label_check_shows_what_runs(tmp_path):
    commands = [each.replace("/data", f"{tmp_path}") for each in documented("projects/Labels/check.md")]
    commands = [re.sub(r"([ :=])output", rf"\1{tmp_path}/output", each) for each in commands]
    commands = [each.replace("50:100:1", "8:16:1").replace("0:50:1", "0:8:1") for each in commands]
    check, *train, again, accept = commands
    labels = json.loads((tmp_path / "boxes.json").read_text())
    for box in labels["annotations"][:2]:  # wrong, as their colours say
        box["category_id"] = 3 - box["category_id"]
    (tmp_path / "boxes.json").write_text(json.dumps(labels))
    options = f"{DETECTION} MODEL.DEVICE cpu"
    text = run(f"{check} --short-side 64 --readers 0 {options}", tmp_path)
    assert "2 jobs, 0 done before" in text and "suspects.html, .csv, .json and .png are in" in text
    continued = run(f"{check} --short-side 64 --readers 0 {options}", tmp_path)
    assert "2 jobs, 2 done before" in continued and "is there already" in continued
    for command in train:
        run(f"{command} {options}", tmp_path)
    assert "suspects" in run(f"{again} --short-side 64 --readers 0", tmp_path)
    rows = (tmp_path / "output/suspects/suspects.csv").read_text().splitlines()
    swapped = [row for row in rows[1:] if ",swapped," in row]
    (tmp_path / "accepted.csv").write_text("\n".join([rows[0], *swapped[:2]]) + "\n")
    accept = accept.replace("accepted.csv", f"{tmp_path}/accepted.csv")
    assert "2 corrections are in" in run(accept, tmp_path)


@pytest.fixture
def scenes(tmp_path) -> Path:
    """Sixteen TIFFs of thirteen bands of 16 bits; a class of boxes is bright in band 4, the other in band 8."""
    folder = tmp_path / "scenes"
    folder.mkdir()
    rng = np.random.default_rng(0)
    images, boxes = [], []
    for number in range(16):
        bands = rng.uniform(200, 2500, (64, 80, 13))
        x, y = rng.integers(5, 30, size=2).tolist()
        bands[y : y + 25, x : x + 30, (3, 7)[number % 2]] += 2500
        name = f"{number:02d}.tif"
        tifffile.imwrite(folder / name, bands.astype(np.uint16), photometric="minisblack", planarconfig="contig")
        images.append({"id": number, "file_name": name, "height": 64, "width": 80})
        place = {"image_id": number, "category_id": 1 + number % 2, "bbox": [x, y, 30, 25]}
        boxes.append({"id": number + 1, "area": 750, "iscrowd": 0, **place})
    categories = [{"id": 1, "name": "field"}, {"id": 2, "name": "roof"}]
    (tmp_path / "boxes.json").write_text(json.dumps({"images": images, "annotations": boxes, "categories": categories}))
    return folder


@pytest.mark.docs
def test_the_page_of_channels_leads_from_thirteen_bands_to_a_detector(scenes, tmp_path):
    plan, train, convert_to, finetune, predict, export, files, dicom = (
        on_photos(each, tmp_path) for each in documented("docs/tasks/channels.md")
    )
    bands = " ".join(f"b{number}" for number in range(1, 14))
    text = run(plan, tmp_path)
    assert re.search(r"^b13 +2\d\d +1\d\d\d", text, re.MULTILINE)
    assert (tmp_path / "output/channels/pretrain/views.png").is_file()
    assert f"2 iterations, INPUT.CHANNELS {bands}" in run(f"{train} {OWN}", tmp_path)
    run(convert_to, tmp_path)
    text = run(f"{finetune} {ON_CPU}", tmp_path)
    assert "100 of 100 backbone tensors loaded" in text and f"INPUT.CHANNELS {bands}" in text
    assert "16 of 16 files: pictures and JSON" in run(f"{predict} --score-threshold 0", tmp_path)
    assert cv2.imread(f"{tmp_path}/output/channels/found/00.png").std() > 10
    run(export, tmp_path)
    described = json.loads((tmp_path / "output/channels/detector.json").read_text())
    assert "b13" in json.dumps(described)
    (tmp_path / "fields").mkdir()
    for number, band in itertools.product(range(4), "DFR"):
        values = np.random.default_rng(number).integers(0, 4000, (64, 64), np.uint16)
        tifffile.imwrite(tmp_path / f"fields/{number}_{band}.TIF", values, photometric="minisblack")
    assert "INPUT.CHANNELS ['D', 'F', 'R']" in run(files, tmp_path)
    (tmp_path / "ct").mkdir()
    for number, file in enumerate(get_testdata_files("CT_small.dcm") * 4):
        shutil.copy(file, tmp_path / f"ct/{number}.dcm")
    assert "INPUT.RANGE [[-160.0, 240.0]]" in run(dicom, tmp_path)


@pytest.fixture
def scans(tmp_path) -> Path:
    """Four GeoTIFFs with bright boxes, their labels in COCO's format, and one of them as a polygon on the map."""
    folder = tmp_path / "scans"
    folder.mkdir()
    rng = np.random.default_rng(0)
    images, boxes = [], []
    for number in range(4):
        pixels = rng.integers(0, 90, (200, 260, 3), np.uint8)
        x, y = rng.integers(5, 150, size=2).tolist()
        pixels[y : y + 40, x : x + 50] += 150
        name = f"{number}.tif"
        tifffile.imwrite(folder / name, pixels, metadata=None, extratags=[*tie(), geo_keys()])
        images.append({"id": number, "file_name": name, "height": 200, "width": 260})
        box = {"image_id": number, "category_id": 1, "bbox": [x, y, 50, 40], "area": 2000, "iscrowd": 0}
        boxes.append({"id": number + 1, **box})
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "roof"}]}
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    found = [{"file_name": str(folder / "0.tif"), "objects": [{**boxes[0], "score": 1.0}]}]
    write_map(tmp_path, found, ["roof"])
    (tmp_path / "predictions.gpkg").rename(tmp_path / "crowns.gpkg")
    return folder


@pytest.mark.docs
def test_the_page_of_large_images_leads_from_scans_to_a_map(scans, tmp_path):
    pretrain, convert_to, finetune, predict, on_a_map, discover, save = (
        on_photos(each, tmp_path).replace("1024+128", "128+32") for each in documented("docs/tasks/large-images.md")
    )
    assert "24 windows of 128 px in 4 images" in run(f"{pretrain} {OWN}", tmp_path)
    run(convert_to, tmp_path)
    text = run(f"{finetune} {ON_CPU}", tmp_path)
    assert "show objects, and of" in text and "INPUT.TILES '128+32'" in text
    assert json.loads((tmp_path / "output/scans/detector/evaluation.json").read_text())["bbox"]["AP"] >= 0
    text = run(f"{predict} --score-threshold 0", tmp_path)
    assert "4 of 4 files: pictures and JSON" in text and "in their own CRS" in text
    assert (tmp_path / "output/scans/found/predictions.gpkg").is_file()
    assert "crowns.gpkg are the column class" in run(f"{on_a_map} {ON_CPU}", tmp_path)
    assert "imagenet:efficientnet_lite0" in discover and "--count 300" in discover  # run in test_tiled.py
    run(save, tmp_path)
    assert len(list((tmp_path / "output/tiled").glob("*.tif"))) == 4
