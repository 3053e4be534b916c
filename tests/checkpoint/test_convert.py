"""Conversion: identical features, every tensor placed, nothing leaked, nothing executed."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
import torchvision
from tiny import random_views, tiny_config, tiny_model

from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.convert import convert, flags_to_config
from revisit.checkpoint.flags import flags_of, read_flags, write_flags
from revisit.checkpoint.layouts import recognise
from revisit.errors import UserError
from revisit.modeling.backbone.resnet import build_revisit_resnet_backbone

from detectron2.checkpoint import DetectionCheckpointer
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_model

RGB = ShapeSpec(channels=3)


def revisit_checkpoint() -> dict:
    model = tiny_model().train()
    for _ in range(2):  # BN statistics other than their start
        model.encode_positives(random_views(4))
    return {"model": model.state_dict(), "flags": flags_of(tiny_config())}


def detector_config(*options: object):
    cfg = tiny_config()
    detector = {
        "MODEL.META_ARCHITECTURE": "GeneralizedRCNN",
        "MODEL.BACKBONE.NAME": "build_dilated_c5_backbone",
        "MODEL.RPN.IN_FEATURES": ["c5"],
        "MODEL.ROI_HEADS.IN_FEATURES": ["c5"],
        "MODEL.ROI_HEADS.NAME": "StandardROIHeads",
        "MODEL.ROI_BOX_HEAD.NAME": "FastRCNNConvFCHead",
        "MODEL.ROI_BOX_HEAD.NUM_FC": 1,
        "MODEL.ROI_BOX_HEAD.FC_DIM": 32,
        "MODEL.RESNETS.RES5_DILATION": 2,
    }
    cfg.merge_from_list([*(item for pair in detector.items() for item in pair), *options])
    return cfg


def write_weights(path: Path, checkpoint: dict) -> Path:
    """What tools/convert_to_d2.py writes."""
    converted = convert(checkpoint)
    torch.save({"model": converted.tensors, "matching_heuristics": True}, path)
    write_flags(path, converted.flags, source="test")
    return path


def test_the_detectors_backbone_gives_the_very_features_of_the_pretrained_one(tmp_path):
    checkpoint = revisit_checkpoint()
    weights = write_weights(tmp_path / "backbone.pth", checkpoint)
    cfg = detector_config("MODEL.RESNETS.RES5_DILATION", 1)
    detector = build_model(cfg).eval()
    RevisitCheckpointer(detector, cfg).resume_or_load(str(weights), resume=False)
    pretrained = tiny_model().eval()
    pretrained.load_state_dict(checkpoint["model"])
    x = torch.randn(2, 3, 64, 96)
    assert torch.equal(pretrained.backbone(x)["res5"], detector.backbone.bottom_up(x)["res5"])


@pytest.mark.parametrize("method", ["KNNMoCo", "DenseCL"])
def test_pretraining_starts_both_encoders_from_a_converted_backbone(method, tmp_path):
    checkpoint = revisit_checkpoint()
    weights = write_weights(tmp_path / "backbone.pth", checkpoint)
    cfg = tiny_config("MODEL.META_ARCHITECTURE", method, "VIEWS.NUM_SMALL", 0)
    torch.manual_seed(1)
    model = build_model(cfg)
    RevisitCheckpointer(model, cfg).resume_or_load(str(weights), resume=False)
    for encoder in (model.backbone, model.momentum_backbone):
        for name, value in encoder.state_dict().items():
            assert torch.equal(value, checkpoint["model"][f"backbone.{name}"]), name


def test_detectron2s_own_checkpointer_loads_the_weights_too(tmp_path):
    checkpoint = revisit_checkpoint()
    weights = write_weights(tmp_path / "backbone.pth", checkpoint)
    detector = build_model(detector_config())
    DetectionCheckpointer(detector).load(str(weights))
    for name, value in detector.backbone.bottom_up.state_dict().items():
        assert torch.equal(value, checkpoint["model"][f"backbone.{name}"]), name


@pytest.mark.parametrize("depth", [18, 34, 50, 101])
def test_torchvision_weights_give_torchvisions_features(depth):
    torch.manual_seed(0)
    reference = getattr(torchvision.models, f"resnet{depth}")().train()
    reference(torch.randn(4, 3, 64, 64))  # BN statistics other than their start
    reference.eval()
    converted = convert(reference.state_dict())
    assert converted.source == "torchvision"
    assert converted.flags["MODEL.RESNETS.DEPTH"] == depth
    model = build_revisit_resnet_backbone(flags_to_config(converted.flags), RGB).eval()
    model.load_state_dict(converted.tensors, strict=True)
    x = torch.randn(2, 3, 96, 128)
    stem = reference.maxpool(reference.relu(reference.bn1(reference.conv1(x))))
    expected = reference.layer4(reference.layer3(reference.layer2(reference.layer1(stem))))
    assert (model(x)["res5"] - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_the_flags_name_what_the_weights_depend_on():
    flags = convert(torchvision.models.resnet50().state_dict()).flags
    assert flags["MODEL.RESNETS.STRIDE_IN_1X1"] is False
    assert flags["MODEL.PIXEL_MEAN"] == [123.675, 116.28, 103.53]
    assert flags["INPUT.FORMAT"] == "RGB"
    assert (flags["MODEL.RESNETS.RES2_OUT_CHANNELS"], flags["MODEL.RESNETS.WIDTH_PER_GROUP"]) == (256, 64)


@pytest.mark.parametrize(("architecture", "name"), [("MoCo", "MoCo"), ("KNNMoCo", "kNN-MoCo")])
def test_momentum_encoder_heads_and_queue_stay_behind(architecture, name):
    option = ("MODEL.META_ARCHITECTURE", architecture)
    converted = convert({"model": tiny_model(*option).state_dict(), "flags": flags_of(tiny_config(*option))})
    assert all(key.startswith(("stem.", "res")) for key in converted.tensors)
    assert converted.training == name


def test_dense_heads_stay_behind():
    checkpoint = revisit_checkpoint()
    tensors = checkpoint["model"]
    tensors |= {f"{place}.0.weight": torch.ones(2) for place in ("dense_head", "momentum_dense_head")}
    assert all(key.startswith(("stem.", "res")) for key in convert(checkpoint).tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("backbone.res3.0.conv1.weight"), "no value for res3.0.conv1.weight"),
        (lambda t: t.update({"backbone.res9.weight": torch.zeros(1)}), "cannot place res9.weight"),
        (lambda t: t.update({"decoder.weight": torch.zeros(1)}), "cannot place decoder.weight"),
        (lambda t: t.update({"backbone.stem.conv1.weight": torch.zeros(8, 3, 3, 3)}), "stem.conv1.weight is"),
        (lambda t: [t.pop(k) for k in list(t) if k.startswith("backbone.")], "no backbone recognised"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, message):
    checkpoint = revisit_checkpoint()
    change(checkpoint["model"])
    with pytest.raises(UserError, match=message):
        convert(checkpoint)


def test_torchvision_keys_without_a_place_are_refused():
    tensors = torchvision.models.resnet18().state_dict()
    tensors["layer5.0.conv1.weight"] = torch.zeros(1)
    with pytest.raises(UserError, match=r"res6.0.conv1.weight"):
        convert(tensors)
    tensors["classifier.weight"] = torch.zeros(1)
    with pytest.raises(UserError, match="cannot place classifier.weight"):
        convert(tensors)


def test_a_file_without_backbone_says_what_it_holds():
    with pytest.raises(UserError, match="it holds encoder.a, encoder.b"):
        recognise({"model": {"encoder.a": torch.zeros(1), "encoder.b": torch.zeros(1)}})


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
def test_finetuning_under_other_flags_is_refused_by_name(tmp_path, options, message):
    weights = write_weights(tmp_path / "backbone.pth", revisit_checkpoint())
    cfg = detector_config(*options)
    with pytest.raises(UserError, match=message):
        RevisitCheckpointer(build_model(cfg), cfg).resume_or_load(str(weights), resume=False)


def test_one_missing_backbone_tensor_is_refused_unless_allowed(tmp_path):
    weights = write_weights(tmp_path / "backbone.pth", revisit_checkpoint())
    content = torch.load(weights)
    del content["model"]["res4.1.conv2.weight"]
    torch.save(content, weights)
    cfg = detector_config()
    with pytest.raises(
        UserError, match="only 99 of 100 backbone tensors .*first without: backbone.bottom_up.res4.1.conv2.weight"
    ):
        RevisitCheckpointer(build_model(cfg), cfg).resume_or_load(str(weights), resume=False)
    cfg.MODEL.ALLOW_PARTIAL_BACKBONE = True
    RevisitCheckpointer(build_model(cfg), cfg).resume_or_load(str(weights), resume=False)


def test_an_unreadable_flag_file_is_named(tmp_path):
    (tmp_path / "backbone.yaml").write_text("depth 50")
    with pytest.raises(UserError, match=r"backbone.yaml is not a flag file"):
        read_flags(tmp_path / "backbone.pth")


def test_pkl_weights_load_into_detectron2(tmp_path):
    checkpoint = revisit_checkpoint()
    arrays = {key: value.numpy() for key, value in convert(checkpoint).tensors.items()}
    path = tmp_path / "backbone.pkl"
    path.write_bytes(pickle.dumps({"model": arrays, "__author__": "test", "matching_heuristics": True}))
    detector = build_model(detector_config())
    DetectionCheckpointer(detector).load(str(path))
    value = detector.backbone.bottom_up.res2[0].conv1.weight
    assert torch.equal(value, checkpoint["model"]["backbone.res2.0.conv1.weight"])
