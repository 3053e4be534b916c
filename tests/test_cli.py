"""Every command of README.md and datasets/README.md, typed as a user would, and the mistakes a user makes."""

import json
from pathlib import Path

import pytest
import torch
from commands import TINY, one_line_error, run
from runs import assert_numbers_are_explained

from revisit.data.classification_datasets import CIFAR10_CLASSES
from revisit.viz.curves import read_metrics


def test_readme_dry_run(toy_root, tmp_path):
    run(f"python tools/train_net.py --config-file configs/toy/pretrain.yaml --dry-run OUTPUT_DIR {tmp_path}", toy_root)
    assert (tmp_path / "views.png").is_file()
    assert json.loads((tmp_path / "dry_run.json").read_text())["data"]["images"] == 60


def test_readme_pretraining_leaves_what_it_says(pretrained):
    for name in ("config.yaml", "log.txt", "metrics.json", "model_final.pth", "backbone.pth", "backbone.yaml"):
        assert (pretrained / name).is_file(), name
    weights = torch.load(pretrained / "backbone.pth", weights_only=True)["model"]
    saved = torch.load(pretrained / "model_final.pth", weights_only=True)["model"]
    assert all(torch.equal(value, saved[f"backbone.{name}"]) for name, value in weights.items())


def test_every_number_that_a_run_writes_is_explained(pretrained):
    assert_numbers_are_explained(pretrained)
    assert "neighbor_purity" in read_metrics(pretrained / "metrics.json")


def test_readme_cifar10(tmp_path, write_pictures):
    for split in ("train", "test"):
        for name in CIFAR10_CLASSES:
            write_pictures(tmp_path / "cifar10" / split / name, 2, size=(32, 32))
    run(
        f"python tools/train_net.py --config-file configs/cifar10/moco.yaml OUTPUT_DIR {tmp_path}/out {TINY} "
        "SOLVER.MAX_ITER 2 MOCO.BN_SPLITS 2 KNN_EVAL.IMAGE_SIZE 32",
        tmp_path,
    )
    assert "knn_top1" in read_metrics(tmp_path / "out/metrics.json")


def test_readme_resume_goes_on_where_the_run_ended(pretrained, toy_root, tmp_path):
    text = run(
        "python tools/train_net.py --config-file configs/toy/pretrain.yaml --num-gpus 2 --resume "
        f"SOLVER.MAX_ITER 12 OUTPUT_DIR {pretrained} {TINY}",
        toy_root,
    )
    assert "resuming at iteration 10: epoch 1, batch 3" in text


def test_readme_finetunes_a_detector_from_the_pretrained_backbone(pretrained, toy_root, tmp_path):
    options = (
        f"SOLVER.MAX_ITER 4 SOLVER.IMS_PER_BATCH 4 OUTPUT_DIR {tmp_path} TEST.PRECISE_BN.NUM_ITER 2 "
        "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"
    )
    command = "python tools/train_net.py --config-file configs/toy/detection.yaml"
    text = run(f"{command} --num-gpus 2 MODEL.WEIGHTS {pretrained}/backbone.pth {options}", toy_root)
    assert "100 of 100 backbone tensors loaded" in text
    printed = json.loads((tmp_path / "metrics.json").read_text().splitlines()[-1])["bbox/AP50"]
    run(f"{command} --eval-only --resume MODEL.WEIGHTS {pretrained}/backbone.pth {options}", toy_root)
    assert json.loads((tmp_path / "evaluation.json").read_text())["bbox"]["AP50"] == pytest.approx(printed)


def test_readme_own_folder_of_images(toy_root, tmp_path):
    run(
        "python tools/train_net.py --config-file configs/pretrain/knn_moco.yaml --num-gpus 1 "
        f"DATASETS.TRAIN \"('folder:{toy_root}/toy_scenes/coco',)\" OUTPUT_DIR {tmp_path} "
        f"MODEL.RESNETS.DEPTH 18 SOLVER.MAX_ITER 2 {TINY}",
        toy_root,
    )
    assert (tmp_path / "model_final.pth").is_file()


def test_eval_only_writes_the_knn_accuracy(pretrained, toy_root, tmp_path):
    command = (
        f"python tools/train_net.py --config-file configs/toy/pretrain.yaml --eval-only OUTPUT_DIR {tmp_path} {TINY}"
    )
    run(f"{command} MODEL.WEIGHTS {pretrained}/model_final.pth", toy_root)
    assert 0 <= json.loads((tmp_path / "evaluation.json").read_text())["knn_top1"] <= 100
    iteration = torch.load(pretrained / "model_final.pth", weights_only=True)["iteration"]
    assert [path.name for path in tmp_path.glob("*.png")] == [f"neighbours_{iteration:07d}.png"]


def test_the_demo_runs_start_to_end(tmp_path):
    text = run(f"python tools/demo.py --quick --output {tmp_path}/demo", tmp_path)
    assert "| kNN top-1, held-out appearance (%) |" in text and "eta: " in text
    summary = (tmp_path / "demo/summary.md").read_text()
    assert "these numbers mean nothing" in summary
    for picture in ("views.png", "curves.png", "neighbours.png"):
        assert picture in summary and (tmp_path / "demo" / picture).stat().st_size > 10_000
    assert "holds a finished demo" in one_line_error(f"python tools/demo.py --quick --output {tmp_path}/demo", tmp_path)


def test_readme_bf16_accumulation_and_channels_last_in_finetuning(pretrained, toy_root, tmp_path):
    run(
        f"python tools/train_net.py --config-file configs/toy/detection.yaml MODEL.WEIGHTS {pretrained}/backbone.pth "
        f"SOLVER.MAX_ITER 3 SOLVER.IMS_PER_BATCH 4 OUTPUT_DIR {tmp_path} TEST.PRECISE_BN.NUM_ITER 2 "
        "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 "
        "SOLVER.AMP.ENABLED True SOLVER.ACCUMULATION_STEPS 2 MODEL.CHANNELS_LAST True",
        toy_root,
    )
    metrics = read_metrics(tmp_path / "metrics.json")
    assert "bbox/AP50" in metrics and metrics["total_loss"][-1][1] > 0


def test_readme_bf16_accumulation_and_channels_last_in_pretraining(toy_root, tmp_path):
    run(
        f"python tools/train_net.py --config-file configs/toy/pretrain.yaml --num-gpus 2 OUTPUT_DIR {tmp_path} {TINY} "
        f"SOLVER.MAX_ITER 8 SOLVER.AMP.ENABLED True SOLVER.AMP.DTYPE bfloat16 SOLVER.ACCUMULATION_STEPS 2 "
        "MODEL.CHANNELS_LAST True VIEWS.SMALL_SIZE 24",
        toy_root,
    )
    metrics = read_metrics(tmp_path / "metrics.json")
    assert metrics["queue_fill"][-1][1] == 100 and metrics["total_loss"][-1][1] > 0
    run(f"python tools/convert_to_d2.py {tmp_path}/model_final.pth {tmp_path}/backbone.pth", toy_root)
    weights = torch.load(tmp_path / "backbone.pth", weights_only=True)["model"]
    assert all(w.dtype in (torch.float32, torch.int64) and w.is_contiguous() for w in weights.values())


@pytest.mark.parametrize("tool", ["train_net", "convert_to_d2", "visualize", "demo", "reproduce", "slurm"])
def test_help_teaches(tool, tmp_path):
    assert "python tools/" in run(f"python tools/{tool}.py --help", tmp_path)


def test_docs_soak_kills_a_run_and_finds_it_bit_identical(tmp_path):
    text = run(f"python projects/Benchmarks/soak.py kill --runs 1 --output {tmp_path}", tmp_path)
    assert "kill: 1 of 1 runs ended bit-identical" in text
    assert json.loads((tmp_path / "kill.json").read_text())[0]["lost"] <= 4


def test_missing_coco_stops_with_the_way_out(tmp_path):
    command = "python tools/train_net.py --config-file configs/pretrain/knn_moco.yaml --num-gpus 2"
    line = one_line_error(f"{command} OUTPUT_DIR {tmp_path}/out", tmp_path)
    for part in (f"{tmp_path}/coco/train2017", "DETECTRON2_DATASETS", "projects/ToyScenes/make_toy_scenes.py"):
        assert part in line
    assert not (tmp_path / "out").exists()


def broken_copy(toy_root: Path, folder: Path, num_broken: int) -> Path:
    """A folder of 300 photographs, ``num_broken`` of them, each 25th, cut short."""
    folder.mkdir()
    images = sorted((toy_root / "toy_scenes/coco/train2017").iterdir())
    for n in range(300):
        data = images[n % len(images)].read_bytes()
        (folder / f"{n:03d}.jpg").write_bytes(data[: len(data) // 2] if n % 25 == 0 and n < 25 * num_broken else data)
    return folder


def test_too_many_unreadable_images_stop_the_run(toy_root, tmp_path):
    folder = broken_copy(toy_root, tmp_path / "photos", 12)
    line = one_line_error(
        "python tools/train_net.py --config-file configs/toy/pretrain.yaml --num-gpus 2 "
        f"DATASETS.TRAIN \"('folder:{folder}',)\" SOLVER.EPOCHS 3 OUTPUT_DIR {tmp_path}/out {TINY}",
        toy_root,
    )
    assert "images could not be read" in line and "truncated JPEG" in line and str(folder) in line


def test_a_few_unreadable_images_are_replaced_and_named(toy_root, tmp_path):
    folder = broken_copy(toy_root, tmp_path / "photos", 2)
    text = run(
        "python tools/train_net.py --config-file configs/toy/pretrain.yaml "
        f"DATASETS.TRAIN \"('folder:{folder}',)\" SOLVER.EPOCHS 2 OUTPUT_DIR {tmp_path}/out {TINY}",
        toy_root,
    )
    for name in ("000.jpg", "025.jpg"):
        assert f"unreadable image replaced by its neighbour: {folder}/{name}: truncated JPEG" in text
    assert read_metrics(tmp_path / "out/metrics.json")["read_failures"][-1][1] == 4


def test_the_converter_refuses_a_damaged_file(tmp_path):
    (tmp_path / "in.pth").write_bytes(b"PK\x03\x04 torn")
    line = one_line_error(f"python tools/convert_to_d2.py {tmp_path}/in.pth {tmp_path}/out.pth", tmp_path)
    assert "in.pth is not a whole checkpoint of plain tensors" in line
    assert not (tmp_path / "out.pth").exists()
