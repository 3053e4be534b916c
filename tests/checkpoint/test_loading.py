"""Converted weights in the models that start from them: whole, under their flags, in every place of the backbone."""

from pathlib import Path

import pytest
import torch
from checkpoints import load_into, run_checkpoint, write_converted
from runs import assert_same
from tiny import tiny_config, tiny_model

from revisit.checkpoint.flags import read_flags
from revisit.errors import UserError

from detectron2.checkpoint import DetectionCheckpointer
from detectron2.config import CfgNode
from detectron2.modeling import build_model


def detector_config(*options: object) -> CfgNode:
    return tiny_config(
        "MODEL.META_ARCHITECTURE", "GeneralizedRCNN",
        "MODEL.BACKBONE.NAME", "build_dilated_c5_backbone", "MODEL.RESNETS.RES5_DILATION", 2,
        "MODEL.RPN.IN_FEATURES", ["c5"], "MODEL.ROI_HEADS.IN_FEATURES", ["c5"],
        "MODEL.ROI_HEADS.NAME", "StandardROIHeads", "MODEL.ROI_BOX_HEAD.NAME", "FastRCNNConvFCHead",
        "MODEL.ROI_BOX_HEAD.NUM_FC", 1, "MODEL.ROI_BOX_HEAD.FC_DIM", 32, *options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint() -> dict:
    """Of a run whose BN statistics are not those of the start any more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parents[2])
        found = run_checkpoint()
    for name, value in found["model"].items():
        if "running" in name:
            value.uniform_(0.5, 2)
    return found


@pytest.fixture
def weights(checkpoint, tmp_path) -> Path:
    return write_converted(checkpoint, tmp_path / "backbone.pth")


def backbone_of_run(checkpoint: dict) -> dict:
    return {k.removeprefix("backbone."): v for k, v in checkpoint["model"].items() if k.startswith("backbone.")}


def test_the_detectors_backbone_gives_the_very_features_of_the_pretrained_one(checkpoint, weights):
    detector = load_into(detector_config("MODEL.RESNETS.RES5_DILATION", 1), weights)
    pretrained = tiny_model().eval()
    pretrained.load_state_dict(checkpoint["model"])
    x = torch.randn(2, 3, 64, 96)
    assert torch.equal(pretrained.backbone(x)["res5"], detector.backbone.bottom_up(x)["res5"])


@pytest.mark.parametrize("method", ["KNNMoCo", "DenseCL"])
def test_pretraining_starts_both_encoders_from_a_converted_backbone(method, checkpoint, weights):
    model = load_into(tiny_config("MODEL.META_ARCHITECTURE", method, "VIEWS.NUM_SMALL", 0), weights)
    for encoder in (model.backbone, model.momentum_backbone):
        assert_same(encoder.state_dict(), backbone_of_run(checkpoint))


@pytest.mark.parametrize("suffix", [".pth", ".pkl"])
def test_detectron2s_own_checkpointer_loads_the_weights_too(suffix, checkpoint, tmp_path):
    detector = build_model(detector_config())
    DetectionCheckpointer(detector).load(str(write_converted(checkpoint, tmp_path / f"backbone{suffix}")))
    assert_same(detector.backbone.bottom_up.state_dict(), backbone_of_run(checkpoint))


def test_a_retinanet_fpn_starts_from_the_weights_within_its_wrapper(checkpoint, weights):
    name = ("MODEL.META_ARCHITECTURE", "RetinaNet", "MODEL.BACKBONE.NAME", "build_retinanet_resnet_fpn_backbone")
    maps = ["res3", "res4", "res5"]
    basic = ("MODEL.RESNETS.RES2_OUT_CHANNELS", 64)  # Detectron2's builder of ResNet-18 has no other width
    content = run_checkpoint(*basic)
    cfg = tiny_config(*name, *basic, "MODEL.RESNETS.OUT_FEATURES", maps, "MODEL.FPN.IN_FEATURES", maps)
    model = load_into(cfg, write_converted(content, weights))
    assert_same(model.backbone.bottom_up.state_dict(), backbone_of_run(content))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("INPUT.FORMAT", "BGR"), "INPUT.FORMAT is BGR here and RGB there"),
        (("MODEL.RESNETS.STRIDE_IN_1X1", True), "STRIDE_IN_1X1 is True here and False there"),
        (("MODEL.PIXEL_STD", [1.0, 1.0, 1.0]), "PIXEL_STD is"),
        (("MODEL.PIXEL_MEAN", [0.0, 0.0, 0.0]), "PIXEL_MEAN is"),
        (("MODEL.RESNETS.DEPTH", 34), "DEPTH is 34 here and 18 there"),
        (("MODEL.RESNETS.STEM_TYPE", "cifar"), "STEM_TYPE is cifar here and basic there"),
    ],
)
def test_finetuning_under_other_flags_is_refused_by_name(weights, options, message):
    with pytest.raises(UserError, match=message):
        load_into(detector_config(*options), weights)


def test_one_missing_backbone_tensor_is_refused_unless_allowed(weights):
    content = torch.load(weights)
    del content["model"]["res4.1.conv2.weight"]
    torch.save(content, weights)
    lacking = "only 99 of 100 backbone tensors .*first without: backbone.bottom_up.res4.1.conv2.weight"
    with pytest.raises(UserError, match=lacking):
        load_into(detector_config(), weights)
    load_into(detector_config("MODEL.ALLOW_PARTIAL_BACKBONE", True), weights)


@pytest.mark.parametrize("text", ["depth 50", "- 1", "{source: x}", "a: ["])
def test_an_unreadable_flag_file_is_named(text, tmp_path):
    (tmp_path / "backbone.yaml").write_text(text)
    with pytest.raises(UserError, match=r"backbone.yaml is not a flag file"):
        read_flags(tmp_path / "backbone.pth")
