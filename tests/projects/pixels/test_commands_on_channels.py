"""Every command after a pretraining, on images of five channels whose weights alone say what these mean."""

import json
from pathlib import Path

import cv2
import numpy as np
import tifffile
import torch
from commands import TINY, run
from fields import DETECTOR, LEAST, NAMES, boxes_of, learned, masks_of, one
from PIL import Image
from runs import load

from projects.Predict.model_export import run_exported


def is_shown(path: Path) -> bool:
    """Whether a picture in colours shows something."""
    picture = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    return picture.shape[2] == 3 and picture.std() > 10


def test_predictions_are_drawn_and_those_for_photographs_refused(of_channels, make_picture, tmp_path):
    weights = f"--weights {of_channels}/detector/model_final.pth --output {tmp_path}"
    Image.fromarray(make_picture(64, 80)).save(tmp_path / "photograph.png")
    images = f"--score-threshold 0.01 --data {of_channels}/fields/images {tmp_path}/photograph.png"
    text = run(f"python tools/predict.py {weights}/found {images}", of_channels)
    assert "8 of 9 files" in text and "/found; shown: principal components of the channels" in text
    assert "photograph.png: 3 channels: expected 5 (1 2 3 4 5)" in text
    assert all(is_shown(tmp_path / f"found/{number}.png") for number in range(8))
    content = json.loads((tmp_path / "found/data_set.json").read_text())
    assert content["annotations"] and [each["name"] for each in content["categories"]] == list(NAMES)
    film = cv2.VideoWriter(str(tmp_path / "film.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 5, (80, 64))
    film.write(make_picture(64, 80))
    film.release()
    text = run(f"python tools/predict.py {weights}/film {tmp_path}/film.mp4", of_channels, expect=2)
    assert "frames are photographs, and the network sees INPUT.CHANNELS 1 2 3 4 5" in text


def test_files_of_further_channels_are_no_images_of_their_own(of_channels, tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(2):
        values = tifffile.imread(f"{of_channels}/fields/images/{number}.tif")
        for channel in range(5):
            tifffile.imwrite(tmp_path / f"images/{number}_{channel}.tif", values[..., channel])
    command = f"--weights {of_channels}/detector/model_final.pth --data {tmp_path}/images"
    patterns = " ".join(f"{{}}_{channel}.tif" for channel in range(5))
    opts = f"--opts INPUT.CHANNEL_FILES '{patterns}'"
    text = run(f"python tools/predict.py {command} --output {tmp_path}/found {opts}", of_channels)
    assert "2 of 2 files" in text and "left out" not in text
    assert {path.name for path in (tmp_path / "found").glob("*.png")} == {"0_0.png", "1_0.png"}
    run(f"python tools/export_model.py {command} --output {tmp_path}/a.ts {opts}", of_channels)


def test_an_exported_network_has_an_input_of_each_channel_and_says_what_they_mean(of_channels, tmp_path):
    data = f"--output {tmp_path}/a.ts --data {of_channels}/fields/images"
    run(f"python tools/export_model.py --weights {of_channels}/detector/model_final.pth {data}", of_channels)
    boxes, scores, *_ = run_exported(tmp_path / "a.ts", torch.full((5, 48, 60), 90.0))
    assert boxes.shape == (len(scores), 4)
    card = json.loads((tmp_path / "a.json").read_text())
    assert card["image"] == "(5, H, W) float32, 0..255" and card["channels"] == list("12345")
    assert np.shape(card["ranges_that_become_0_to_255"]) == (5, 2) and len(card["nodata_becomes"]) == 5
    assert "bits_that_become_0_to_255" not in card


def test_a_network_of_channels_is_quantized_and_timed(of_channels, tmp_path):
    data = f"--data folder:{of_channels}/fields/images --output {tmp_path} --format int8_pyramid"
    run(f"python tools/benchmark.py --weights {of_channels}/detector/model_final.pth {data}", of_channels)
    rows = json.loads((tmp_path / "benchmark.json").read_text())["rows"]
    assert [row["runtime"] for row in rows] == ["torch", "onnx", "int8_pyramid"]


def test_sheets_and_a_report_show_what_people_see(of_channels, tmp_path):
    run(
        f"python tools/visualize.py --weights {of_channels}/detector/model_final.pth --output {tmp_path} --count 2",
        of_channels,
    )
    (sheet,) = tmp_path.glob("*.png")
    assert is_shown(sheet)
    run(f"python tools/report.py {of_channels}/detector --output {tmp_path}/report.html", of_channels)
    assert "most errors first" in (tmp_path / "report.html").read_text()


def test_a_detector_labels_images_of_channels(of_channels, tmp_path):
    data = f"--data folder:{of_channels}/fields/images --output {tmp_path} --score-threshold 0.01"
    run(f"python tools/self_label.py --weights {of_channels}/detector/model_final.pth {data}", of_channels)
    assert json.loads((tmp_path / "data_set.json").read_text())["annotations"]


def test_a_segmentation_is_finetuned_and_draws(of_channels, tmp_path):
    data = f"{learned(masks_of(of_channels))} MODEL.WEIGHTS {of_channels}/backbone.pth OUTPUT_DIR {tmp_path}"
    small = "SOLVER.EPOCHS 0 INPUT.CROP.SIZE [48,48] MODEL.SEM_SEG_HEAD.CONVS_DIM 8 TEST.EVAL_PERIOD 0"
    recipe = "configs/own_images/segmentation.yaml"
    run(f"python tools/train_net.py --config-file {recipe} {data} {small} {LEAST}", of_channels)
    found = f"--output {tmp_path}/found {of_channels}/fields/images/0.tif"
    run(f"python tools/predict.py --weights {tmp_path}/model_final.pth {found}", of_channels)
    assert is_shown(tmp_path / "found/0.png") and (tmp_path / "found/classes/0.png").is_file()


def test_a_teacher_learns_from_images_of_channels(of_channels, tmp_path):
    photographs = one(f"folder:{of_channels}/fields/images")
    data = f"{learned(boxes_of(of_channels))} DATASETS.UNLABELLED {photographs}"
    start = f"MODEL.WEIGHTS {of_channels}/backbone.pth OUTPUT_DIR {tmp_path} TEACHER.BURN_IN 1 TEACHER.THRESHOLD (0.0,)"
    recipe = "configs/own_images/teacher.yaml"
    run(f"python tools/train_net.py --config-file {recipe} {data} {start} {DETECTOR}", of_channels)
    assert is_shown(tmp_path / "teacher/iteration_0000001.png")


def test_starts_are_probed_on_images_of_channels(of_channels, tmp_path):
    data = f"{learned(boxes_of(of_channels))} {DETECTOR}"
    starts = f"--weights random {of_channels}/backbone.pth --how probe --seeds 1 --output {tmp_path}"
    text = run(f"python tools/compare_starts.py --config-file own_images/mask_rcnn.yaml {starts} {data}", of_channels)
    assert "Probe, balanced accuracy" in text


def test_frozen_features_of_channels_are_judged(of_channels, tmp_path):
    for number in range(8):
        (tmp_path / "kinds" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "kinds" / "ab"[number % 2] / f"{number}.tif").symlink_to(
            of_channels / f"fields/images/{number}.tif"
        )
    script, configs = "python projects/FrozenEvaluations", "projects/FrozenEvaluations/configs"
    weights = f"--weights {of_channels}/backbone.pth --output {tmp_path}"
    backbone = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 DATALOADER.NUM_WORKERS 0"
    kinds = f"class_folders:{tmp_path}/kinds"
    data = f"{learned(kinds)} LINEAR.IMAGE_SIZE 32 {backbone}"
    by_sgd = "LINEAR.METHOD sgd SOLVER.EPOCHS 1"
    linear = f"--config-file {configs}/linear/own_images.yaml"
    run(f"{script}/linear.py {linear} {weights}/linear {data} {by_sgd}", of_channels)
    run(f"{script}/linear.py {linear} {weights}/knn {data} LINEAR.METHOD knn KNN_EVAL.NUM_NEIGHBORS 2", of_channels)
    seen = f"CAM.CLASSIFIER {tmp_path}/linear/classifier.pth DATASETS.TEST {one(kinds)} {backbone} CAM.NUM_IMAGES 2"
    run(f"{script}/cams.py --config-file {configs}/cams/toy.yaml {weights}/cams {seen}", of_channels)
    regions = f"{learned(masks_of(of_channels))} SEGMENT_RETRIEVAL.IMAGE_SIZE 64 {backbone}"
    subset = f"SEGMENT_RETRIEVAL.SUBSET {one('class 1')} SEGMENT_RETRIEVAL.NUM_REGIONS 3"
    retrieval = f"--config-file {configs}/retrieval/toy.yaml {weights}/regions {regions} {subset}"
    run(f"{script}/retrieval.py {retrieval}", of_channels)
    for sheet in ("cams/cams.png", "regions/gallery.png"):
        assert is_shown(tmp_path / sheet)


def test_two_processes_see_the_same_channels_and_resume_on_them_alone(of_channels, tmp_path):
    files = f"DATASETS.TRAIN {one(f'folder:{of_channels}/fields/images')} DATASETS.TEST () OUTPUT_DIR {tmp_path}/run"
    train = "python tools/train_net.py --num-gpus 2 --config-file configs/toy/pretrain.yaml"
    keys = f"{files} {TINY} {LEAST}"
    text = run(f"{train} {keys}", of_channels)
    assert "2 gloo processes" in text and text.count("INPUT.CHANNELS ['1', '2', '3', '4', '5']") == 1
    flags = load(tmp_path / "run/model_final.pth")["flags"]
    assert flags["INPUT.CHANNELS"] == list("12345") and np.shape(flags["INPUT.RANGE"]) == (5, 2)
    resume = f"{train} --resume {keys} SOLVER.MAX_ITER 4"
    text = run(f'{resume} INPUT.CHANNELS "a b c d e"', of_channels, expect=2)
    assert "another experiment, INPUT.CHANNELS" in text and "Traceback" not in text
    assert "resuming at iteration 2" in run(resume, of_channels)
