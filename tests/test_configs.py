"""The paper's recipes, resolved by ``train_net.py --dry-run``, against tables of what it says of them."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import yaml

from revisit.engine import data_checks

CONFIGS = Path("configs")
BASES = ("Base-Pretrain.yaml", "Base-Finetune.yaml", "Base-Dense.yaml")

COCO = 118287
TWO_CROPS = ((2, 224, (0.2, 1.0)), None, 0.0)
MULTI = ((2, 160, (0.2, 1.0)), (4, 96, (0.05, 0.14)), 0.0)
CONSTRAINED = ((2, 160, (0.2, 1.0)), (4, 96, (0.05, 0.14)), 0.2)
STANDARD, AUTO, EITHER = "standard", "autoaugment", "standard_or_autoaugment"

# epochs, (large, small, overlap), m, policy, (lambda, k, warm-up epochs) or None
RUNS = {
    "moco": (200, TWO_CROPS, 0.999, STANDARD, None),
    "moco_mc": (200, MULTI, 0.999, STANDARD, None),
    "moco_mc_cc": (200, CONSTRAINED, 0.999, STANDARD, None),
    "moco_mc_cc_m": (200, CONSTRAINED, 0.995, STANDARD, None),
    "moco_mc_cc_m_aplus": (200, CONSTRAINED, 0.995, EITHER, None),
    "moco_mc_cc_m_autoaugment": (200, CONSTRAINED, 0.995, AUTO, None),
    "knn_moco": (200, CONSTRAINED, 0.995, EITHER, (0.4, 20, 5)),
    "knn_moco_no_aplus": (200, CONSTRAINED, 0.995, STANDARD, (0.4, 20, 5)),
    "comparison/moco_800ep": (800, TWO_CROPS, 0.999, STANDARD, None),
    "comparison/moco_cc_800ep": (800, CONSTRAINED, 0.995, STANDARD, None),
    "comparison/moco_cc_aplus_800ep": (800, CONSTRAINED, 0.995, EITHER, None),
    "comparison/knn_moco_800ep": (800, CONSTRAINED, 0.995, EITHER, (0.4, 20, 5)),
    "densecl": (800, TWO_CROPS, 0.999, STANDARD, None),
    "objects_fpn": (100, TWO_CROPS, 0.995, EITHER, (0.4, 20, 5)),
    "data_bias": (400, TWO_CROPS, 0.999, STANDARD, None),
}
OBJECTIVES = {"simclr": "SimCLR", "byol": "BYOL", "swav": "SwAV"}  # as toy/pretrain, but for the loss
SGD, ADAM = "SGD", "Adam"
FCN, DEEPLAB = "RevisitFCNHead", "RevisitDeepLabV3Head"
STEP, POLY = "WarmupMultiStepLR", "PolynomialLR"
# batch, lr, optimiser, schedule, iterations, steps of the learning rate, warm-up
SCHEDULES = {
    "detection/voc_faster_rcnn_R50_C5": (16, 0.02, SGD, STEP, 24000, [18000, 22000], 100),
    "detection/voc_faster_rcnn_R50_C4": (16, 0.02, SGD, STEP, 24000, [18000, 22000], 100),
    "detection/coco_mask_rcnn_R50_C4": (16, 0.02, SGD, STEP, 90000, [60000, 80000], 1000),
    "detection/coco_faster_rcnn_R50_FPN": (16, 0.02, SGD, STEP, 90000, [60000, 80000], 1000),
    "detection/coco_mask_rcnn_R50_FPN": (16, 0.02, SGD, STEP, 90000, [60000, 80000], 1000),
    "detection/coco_retinanet_R50_FPN": (16, 0.01, SGD, STEP, 90000, [60000, 80000], 1000),
    "detection/voc_faster_rcnn_R50_FPN": (16, 0.02, SGD, STEP, 18000, [12000, 16000], 100),
    "segmentation/voc_fcn_R50": (16, 0.003, SGD, STEP, 29762, [19841, 26455], 0),
    "segmentation/voc_fcn_R50_released": (16, 0.003, SGD, STEP, 29762, [19841, 26455], 0),
    "segmentation/cityscapes_fcn_R50": (16, 1e-4, ADAM, POLY, 27891, [], 0),
    "segmentation/nyud_deeplab_R50": (8, 1e-4, ADAM, POLY, 9938, [], 0),
    "depth/nyud_deeplab_R50": (8, 1e-4, ADAM, POLY, 9938, [], 0),
    "segmentation/nyud_multi_task_code_R50": (8, 1e-4, ADAM, POLY, 9938, [], 0),
    "depth/nyud_multi_task_code_R50": (8, 1e-4, ADAM, POLY, 9938, [], 0),
}
# head, dilations of its 3x3 convolutions, its outputs, crop or None, images
DENSE = {
    "segmentation/voc_fcn_R50": (FCN, [6], 21, [513, 513], 10582),
    "segmentation/voc_fcn_R50_released": (FCN, [6], 21, None, 10582),
    "segmentation/cityscapes_fcn_R50": (FCN, [1], 19, [768, 768], 2975),
    "segmentation/nyud_deeplab_R50": (DEEPLAB, [12, 24, 36], 40, [512, 512], 795),
    "depth/nyud_deeplab_R50": (DEEPLAB, [12, 24, 36], 1, [512, 512], 795),
    "segmentation/nyud_multi_task_code_R50": (DEEPLAB, [1, 12, 24, 36], 40, None, 795),
    "depth/nyud_multi_task_code_R50": (DEEPLAB, [1, 12, 24, 36], 1, None, 795),
}
# dilations of res4 and res5, scale and its sampling, rotation, squashed size, resampling
IMAGES = (([1], [2]), ([0.5, 2.0], "range"), 0, None, "antialias")
RELEASED = (([1], [2]), ([0.75, 1.25], "range"), 5, [512, 512], "opencv")
MULTI_TASK = (([1, 2], [2, 4]), ([1.0, 1.2, 1.5], "choice"), 0, [480, 640], "opencv")


@pytest.fixture
def dry_run(tmp_path, monkeypatch, capsys):
    """What ``train_net.py --dry-run`` writes of a recipe, with the data sets below ``root``."""

    def call(name: str, root: Path = tmp_path / "nothing", processes: int = 2, cost: bool = False) -> dict:
        if not cost:  # seconds for a ResNet-50, as the picture of its views
            monkeypatch.setattr("projects.Planning.run_cost._cost", lambda *_: {})
            monkeypatch.setattr("projects.Pictures.pretraining_sheets.save_view_sheet", lambda *_: None)
        words = f"train_net.py --config-file configs/{name}.yaml --num-gpus {processes} --dry-run OUTPUT_DIR"
        monkeypatch.setenv("DETECTRON2_DATASETS", str(root))
        monkeypatch.setattr(sys, "argv", [*words.split(), str(tmp_path)])
        try:
            runpy.run_path("tools/train_net.py", run_name="__main__")
        except SystemExit as stop:
            assert not stop.code
        return json.loads((tmp_path / "dry_run.json").read_text())

    return call


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_the_paper_resolves_to_its_settings(name, dry_run):
    plan = dry_run(f"pretrain/{name}")
    epochs, (large, small, min_overlap), m, policy, knn = RUNS[name]
    others = {"densecl": "DenseCL", "objects_fpn": "ObjectMoCo"}
    assert plan["architecture"] == others.get(name, "KNNMoCo" if knn else "MoCo")
    assert (plan["epochs"], plan["keys"]["MOCO.MOMENTUM"], plan["policy"]) == (epochs, m, policy)
    assert (plan["lambda"], plan["k"], plan["keys"].get("NEIGHBORS.WARMUP_EPOCHS", 0)) == (knn or (0.0, 0, 0))
    crops = plan["crops"]
    assert crops["large"] == {"count": large[0], "size": large[1], "scale": list(large[2])}
    assert crops["small"]["count"] == (small[0] if small else 0)
    if small:
        assert (crops["small"]["size"], tuple(crops["small"]["scale"])) == small[1:]
    assert (crops["min_overlap"], crops["max_iou"]) == (min_overlap, 1.0)
    assert plan["data"]["images"] == COCO and plan["iterations"] == plan["epochs"] * (COCO // 256)
    assert (plan["batch"], plan["lr"], plan["schedule"], plan["sgd_momentum"]) == (256, 0.3, "WarmupCosineLR", 0.9)
    assert plan["lr_warmup_iterations"] == 0 and (plan["grey"], plan["blur"]) == (0.2, 0.5)
    assert plan["weight_decays"] == {"other": 1e-4, "norm": 1e-4, "bias": 1e-4}
    keys = plan["keys"]
    assert (keys["MOCO.TEMPERATURE"], keys["MOCO.QUEUE_SIZE"], plan["precision"]) == (0.2, 65536, "float32")
    assert plan["backbone"][-9:] == "ResNet-50"
    assert keys.get("NEIGHBORS.MINING") == ("before_head" if plan["k"] else None)
    assert (keys["MOCO.BN_GROUP"], keys["MOCO.SHUFFLE_BN"]) == (128, True)


def test_a_step_of_the_papers_recipe_has_five_positives_of_each_image(dry_run):
    shapes = dry_run("pretrain/knn_moco", cost=True)["shapes"]
    assert shapes["projection_head"] == [[128, 128], [512, 128]] and shapes["small"] == [128, 4, 3, 96, 96]


@pytest.mark.parametrize("processes", [1, 2, 8])
def test_batch_statistics_are_over_as_many_images_whatever_the_number_of_processes(processes, dry_run):
    plan = dry_run("pretrain/knn_moco", processes=processes)
    assert (plan["keys"]["MOCO.BN_GROUP"], plan["batch_per_process"]) == (128, 256 // processes)


@pytest.mark.parametrize(("name", "architecture"), OBJECTIVES.items())
def test_another_objective_is_a_toy_run_but_for_its_loss(name, architecture, dry_run, toy_root, monkeypatch):
    monkeypatch.setattr(data_checks, "inspect_training", lambda *_, **options: 10000)  # else too short to warm up
    plan, moco = dry_run(f"toy/{name}", toy_root), dry_run("toy/pretrain", toy_root)
    assert (plan["architecture"], plan["lambda"]) == (architecture, 0.0)
    for fact in ("crops", "policy", "epochs", "iterations", "lr", "weight_decays", "precision", "data", "backbone"):
        assert plan[fact] == moco[fact], fact


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_finetuning_run_resolves_to_its_protocol(name, dry_run):
    plan = dry_run(name)
    batch, lr, optimizer, schedule, iterations, steps, warmup = SCHEDULES[name]
    assert (plan["batch"], plan["lr"], plan["optimizer"], plan["schedule"]) == (batch, lr, optimizer, schedule)
    assert (plan["iterations"], plan["lr_steps"], plan["lr_warmup_iterations"]) == (iterations, steps, warmup)
    if name not in DENSE:
        return
    head, dilation, outputs, crop, images = DENSE[name]
    assert plan["head"]["name"] == head and plan["head"]["dilations"] == dilation
    assert (plan["head"]["outputs"], plan["head"]["channels"]) == (outputs, 256)
    assert plan["crop"] == crop and plan["data"]["images"] == images
    how = RELEASED if "released" in name else MULTI_TASK if "multi_task" in name else IMAGES
    (res4, res5), (factors, sampling), rotation, squash, resampling = how
    assert plan["backbone_dilations"] == {"res4": res4, "res5": res5}
    assert plan["random_scale"] == {"factors": factors, "sampling": sampling}
    published = {"random_rotation": rotation, "squash": squash, "resampling": resampling}
    assert {key: plan.get(key) for key in published} == (dict.fromkeys(published) if how is IMAGES else published)
    assert plan["head"].get("loss") == ("mse" if "depth" in name else None)
    # The protocol decays BN too. FCN's 1x1 has no bias, so no other parameter has one.
    decays = {"other": 1e-4, "norm": 1e-4, "bias": 1e-4}
    assert plan["weight_decays"] == ({k: decays[k] for k in ("other", "norm")} if head == FCN else decays)


def test_the_tables_name_every_recipe_of_the_paper():
    tables = {"pretrain": set(RUNS)}
    for kind in ("detection", "segmentation", "depth"):
        tables[kind] = {name.partition("/")[2] for name in SCHEDULES if name.startswith(kind)}
    for folder, names in tables.items():
        assert {str(path.relative_to(CONFIGS / folder))[:-5] for path in (CONFIGS / folder).rglob("*.yaml")} == names


def test_output_folders_are_told_apart():
    recipes = [path for path in CONFIGS.rglob("*.yaml") if path.name not in BASES[1:]]
    folders = [yaml.safe_load(path.read_text()).get("OUTPUT_DIR") for path in recipes]
    assert len(set(folders)) == len(folders) and None not in folders
