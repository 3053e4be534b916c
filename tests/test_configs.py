"""Every recipe under configs/, resolved by ``train_net.py --dry-run``, against one table of what the method says."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml
from dry_runs import CONFIGS, dry_run

BASES = ("Base-Pretrain.yaml", "Base-Finetune.yaml", "Base-Dense.yaml")

COCO = 118287
TWO_CROPS = ((2, 224, (0.2, 1.0)), None, 0.0)
MULTI = ((2, 160, (0.2, 1.0)), (4, 96, (0.05, 0.14)), 0.0)
CONSTRAINED = ((2, 160, (0.2, 1.0)), (4, 96, (0.05, 0.14)), 0.2)
STANDARD, AUTO, EITHER = "standard", "autoaugment", "standard_or_autoaugment"

# epochs, crops, m, policy, (lambda, k, mining, warm-up epochs) or None
RUNS = {
    "moco": (200, TWO_CROPS, 0.999, STANDARD, None),
    "moco_mc": (200, MULTI, 0.999, STANDARD, None),
    "moco_mc_cc": (200, CONSTRAINED, 0.999, STANDARD, None),
    "moco_mc_cc_m": (200, CONSTRAINED, 0.995, STANDARD, None),
    "moco_mc_cc_m_aplus": (200, CONSTRAINED, 0.995, EITHER, None),
    "moco_mc_cc_m_autoaugment": (200, CONSTRAINED, 0.995, AUTO, None),
    "knn_moco": (200, CONSTRAINED, 0.995, EITHER, (0.4, 20, "before_head", 5)),
    "knn_moco_no_aplus": (200, CONSTRAINED, 0.995, STANDARD, (0.4, 20, "before_head", 5)),
    "comparison/moco_800ep": (800, TWO_CROPS, 0.999, STANDARD, None),
    "comparison/moco_cc_800ep": (800, CONSTRAINED, 0.995, STANDARD, None),
    "comparison/moco_cc_aplus_800ep": (800, CONSTRAINED, 0.995, EITHER, None),
    "comparison/knn_moco_800ep": (800, CONSTRAINED, 0.995, EITHER, (0.4, 20, "before_head", 5)),
    "densecl": (800, TWO_CROPS, 0.999, STANDARD, None),
    "data_bias": (400, TWO_CROPS, 0.999, STANDARD, None),
}


def architecture(name: str, knn: tuple | None) -> str:
    return "DenseCL" if name == "densecl" else "KNNMoCo" if knn else "MoCo"


def assert_crops(crops: dict, large: tuple, small: tuple | None, min_overlap: float) -> None:
    assert crops["large"] == {"count": large[0], "size": large[1], "scale": list(large[2])}
    assert crops["small"]["count"] == (small[0] if small else 0)
    if small:
        assert (crops["small"]["size"], tuple(crops["small"]["scale"])) == small[1:]
    assert (crops["min_overlap"], crops["max_iou"]) == (min_overlap, 1.0)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_the_paper_resolves_to_its_settings(name, tmp_path, monkeypatch, capsys):
    epochs, (large, small, min_overlap), m, policy, knn = RUNS[name]
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "nothing"))
    plan = dry_run(CONFIGS / "pretrain" / f"{name}.yaml", tmp_path, monkeypatch)
    assert plan["architecture"] == architecture(name, knn)
    assert (plan["epochs"], plan["data"]["images"]) == (epochs, COCO)
    assert plan["iterations"] == epochs * (COCO // 256)
    assert (plan["batch"], plan["lr"], plan["schedule"], plan["sgd_momentum"]) == (256, 0.3, "WarmupCosineLR", 0.9)
    assert plan["lr_warmup_iterations"] == 0
    assert plan["weight_decays"] == {"other": 1e-4, "norm": 1e-4, "bias": 1e-4}
    assert (plan["temperature"], plan["queue_size"], plan["momentum"]) == (0.2, 65536, m)
    assert (plan["policy"], plan["precision"], plan["backbone"][-9:]) == (policy, "float32", "ResNet-50")
    assert_crops(plan["crops"], large, small, min_overlap)
    weight, k, mining, wait = knn or (0.0, 0, None, 0)
    assert (plan["lambda"], plan["k"], plan.get("mining"), plan["warmup_epochs"]) == (weight, k, mining, wait)
    assert plan["shapes"]["positives"][1:] == [5 if small else 1, 128]


LARGE = (2, 64, (0.3, 1.0))
SMALL = (2, 40, (0.1, 0.3))

# epochs, (large, small, overlap), m, policy, (lambda, k, warm-up epochs) or None
TOY_RUNS = {
    "pretrain": (36, ((2, 64, (0.6, 1.0)), (2, 40, (0.3, 0.7)), 0.2), 0.99, STANDARD, (0.4, 10, 20)),
    "densecl": (36, ((2, 64, (0.6, 1.0)), None, 0.0), 0.99, STANDARD, None),
    "ablation/moco": (7, (LARGE, None, 0.0), 0.995, STANDARD, None),
    "ablation/moco_mc": (7, (LARGE, SMALL, 0.0), 0.995, STANDARD, None),
    "ablation/moco_mc_cc": (7, (LARGE, SMALL, 0.2), 0.995, STANDARD, None),
    "ablation/moco_mc_cc_m": (7, (LARGE, SMALL, 0.2), 0.99, STANDARD, None),
    "ablation/moco_mc_cc_m_aplus": (7, (LARGE, SMALL, 0.2), 0.99, EITHER, None),
    "ablation/knn_moco": (7, (LARGE, SMALL, 0.2), 0.99, EITHER, (0.4, 10, 3)),
}


@pytest.mark.parametrize("name", TOY_RUNS)
def test_a_toy_run_resolves_to_its_settings(name, toy_datasets, tmp_path, monkeypatch, capsys):
    epochs, crops, m, policy, knn = TOY_RUNS[name]
    plan = dry_run(CONFIGS / "toy" / f"{name}.yaml", tmp_path, monkeypatch)
    assert plan["architecture"] == architecture(name, knn)
    assert (plan["epochs"], plan["data"]["train"], plan["data"]["images"]) == (epochs, ["toy_objects_train"], 60)
    assert (plan["batch"], plan["lr"], plan["lr_warmup_iterations"]) == (60, 0.024, 330)
    assert plan["weight_decays"] == {"other": 5e-4, "norm": 5e-4, "bias": 5e-4}
    assert (plan["temperature"], plan["queue_size"], plan["momentum"]) == (0.07, 480, m)
    assert_crops(plan["crops"], *crops)
    assert plan["policy"] == policy
    weight, k, wait = knn or (0.0, 0, 0)
    assert (plan["lambda"], plan["k"], plan["warmup_epochs"]) == (weight, k, wait)


@pytest.mark.parametrize(("name", "knn"), [("moco", (0.0, 0, 0)), ("knn_moco", (0.4, 20, 5))])
def test_a_cifar_run_resolves_to_its_settings(name, knn, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "nothing"))
    plan = dry_run(CONFIGS / "cifar10" / f"{name}.yaml", tmp_path, monkeypatch)
    assert (plan["epochs"], plan["iterations"], plan["batch"], plan["lr"]) == (24, 24 * 195, 256, 0.06)
    assert plan["weight_decays"] == {"other": 5e-4, "norm": 5e-4, "bias": 5e-4}
    assert (plan["temperature"], plan["queue_size"], plan["momentum"]) == (0.1, 4096, 0.99)
    assert_crops(plan["crops"], (2, 32, (0.2, 1.0)), None, 0.0)
    assert (plan["lambda"], plan["k"], plan["warmup_epochs"]) == knn
    assert plan["shapes"]["anchor"] == [128, 3, 32, 32]


def test_the_tables_name_every_pretraining_recipe():
    paper, toy = (
        {str(path.relative_to(CONFIGS / folder))[:-5] for path in (CONFIGS / folder).rglob("*.yaml")}
        for folder in ("pretrain", "toy")
    )
    finetuning = {"detection", "segmentation_voc", "segmentation_cityscapes", "segmentation_nyud", "depth"}
    assert paper == set(RUNS) and toy - finetuning == set(TOY_RUNS)


@pytest.mark.parametrize("path", [p for p in sorted(CONFIGS.rglob("*.yaml")) if p.name not in BASES], ids=str)
def test_a_recipe_opens_with_its_command_cost_and_protocol(path):
    text = path.read_text()
    header = text[: text.index("_BASE_")] if "_BASE_" in text else text[: text.index("\nMODEL")]
    assert all(line.startswith("#") for line in header.strip().splitlines())
    for label in ("Command", "Cost", "Data", "Protocol"):
        assert f"# {label} " in header, label
    (command,) = re.findall(r"--config-file (\S+)", header)[:1]
    assert Path(command) == path
    assert "# Paper" in header or "# Ours" in header


def test_output_folders_are_told_apart():
    recipes = [path for path in CONFIGS.rglob("*.yaml") if path.name not in BASES[1:]]
    folders = [yaml.safe_load(path.read_text()).get("OUTPUT_DIR") for path in recipes]
    assert len(set(folders)) == len(folders) and None not in folders


def test_a_dry_run_of_unknown_data_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_net.py", "--dry-run", "DATASETS.TRAIN", "('nowhere',)"])
    with pytest.raises(SystemExit):
        runpy.run_path("tools/train_net.py", run_name="__main__")
