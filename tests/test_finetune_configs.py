"""Every finetuning recipe under configs/, resolved by ``train_net.py --dry-run``, against a table of the protocols."""

from pathlib import Path

import pytest
from dry_runs import CONFIGS, dry_run

SGD, ADAM = "SGD", "Adam"
FCN, DEEPLAB = "RevisitFCNHead", "RevisitDeepLabV3Head"
STEP, POLY = "WarmupMultiStepLR", "PolynomialLR"

# batch, lr, optimiser, schedule, iterations, steps of the learning rate, warm-up
SCHEDULES = {
    "detection/voc_faster_rcnn_R50_C5": (16, 0.02, SGD, STEP, 24000, [18000, 22000], 100),
    "detection/voc_faster_rcnn_R50_C4": (16, 0.02, SGD, STEP, 24000, [18000, 22000], 100),
    "detection/coco_mask_rcnn_R50_C4": (16, 0.02, SGD, STEP, 90000, [60000, 80000], 1000),
    "segmentation/voc_fcn_R50": (16, 0.003, SGD, STEP, 45 * 661, [30 * 661, 40 * 661], 0),
    "segmentation/cityscapes_fcn_R50": (16, 1e-4, ADAM, POLY, 150 * 185, [], 0),
    "segmentation/nyud_deeplab_R50": (8, 1e-4, ADAM, POLY, 100 * 99, [], 0),
    "depth/nyud_deeplab_R50": (8, 1e-4, ADAM, POLY, 100 * 99, [], 0),
}
# head, dilations of its 3x3 convolutions, its outputs, crop, images
DENSE = {
    "segmentation/voc_fcn_R50": (FCN, [6], 21, 513, 10582),
    "segmentation/cityscapes_fcn_R50": (FCN, [1], 19, 768, 2975),
    "segmentation/nyud_deeplab_R50": (DEEPLAB, [12, 24, 36], 40, 512, 795),
    "depth/nyud_deeplab_R50": (DEEPLAB, [12, 24, 36], 1, 512, 795),
}
TOY_DENSE = {
    "toy/segmentation_voc": (FCN, [6], 11, 129),
    "toy/segmentation_cityscapes": (FCN, [1], 19, 96),
    "toy/segmentation_nyud": (DEEPLAB, [2, 4, 6], 40, 128),
    "toy/depth": (DEEPLAB, [2, 4, 6], 1, 128),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_finetuning_run_resolves_to_its_protocol(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "nothing"))
    plan = dry_run(CONFIGS / f"{name}.yaml", tmp_path, monkeypatch)
    batch, lr, optimizer, schedule, iterations, steps, warmup = SCHEDULES[name]
    assert (plan["batch"], plan["lr"], plan["optimizer"], plan["schedule"]) == (batch, lr, optimizer, schedule)
    assert (plan["iterations"], plan["lr_steps"], plan["lr_warmup_iterations"]) == (iterations, steps, warmup)
    if name not in DENSE:
        return
    head, dilation, outputs, crop, images = DENSE[name]
    assert plan["head"]["name"] == head and plan["head"]["dilations"] == dilation
    assert (plan["head"]["outputs"], plan["head"]["channels"]) == (outputs, 256)
    assert plan["backbone_dilations"] == {"res4": [1], "res5": [2]}
    assert plan["crop"] == [crop, crop] and plan["data"]["images"] == images
    assert plan["random_scale"] == {"factors": [0.5, 2.0], "sampling": "range"}
    assert plan["head"].get("loss") == ("mse" if "depth" in name else None)
    # The protocol decays BN too. FCN's 1x1 has no bias, so no other parameter has one.
    decays = {"other": 1e-4, "norm": 1e-4, "bias": 1e-4}
    assert plan["weight_decays"] == ({k: decays[k] for k in ("other", "norm")} if head == FCN else decays)


@pytest.mark.parametrize(("name", "expected"), TOY_DENSE.items(), ids=TOY_DENSE)
def test_a_toy_run_is_its_protocol_on_a_small_scale(name, expected, toy_datasets, tmp_path, monkeypatch, capsys):
    head, dilation, outputs, crop = expected
    plan = dry_run(CONFIGS / f"{name}.yaml", tmp_path, monkeypatch)
    assert (plan["head"]["name"], plan["head"]["dilations"], plan["head"]["outputs"]) == (head, dilation, outputs)
    assert plan["crop"] == [crop, crop] and plan["data"]["found"]


def test_the_tables_name_every_finetuning_recipe():
    folders = [path for kind in ("detection", "segmentation", "depth") for path in (CONFIGS / kind).glob("*.yaml")]
    assert {str(path.relative_to(CONFIGS))[:-5] for path in folders} == set(SCHEDULES)
    assert all(Path(CONFIGS / f"{name}.yaml").is_file() for name in TOY_DENSE)
