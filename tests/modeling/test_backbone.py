"""The one backbone builder against Detectron2's own, and the geometry of what only it can build."""

import pytest
import torch
from tiny import tiny_config

from revisit.errors import UserError
from revisit.modeling.backbone.resnet import build_revisit_resnet_backbone
from revisit.modeling.moco_detectors import build_dilated_c5_backbone

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling.backbone.resnet import ResNet, build_resnet_backbone

RGB = ShapeSpec(channels=3)


def config(depth: int, **options: object) -> CfgNode:
    widths = {"STEM_OUT_CHANNELS": 64, "RES2_OUT_CHANNELS": 64 if depth < 50 else 256}
    cfg = tiny_config("MODEL.RESNETS.OUT_FEATURES", ["res2", "res3", "res4", "res5"])
    cfg.MODEL.RESNETS.update({"DEPTH": depth, **widths, **options})
    return cfg


def build(cfg: CfgNode) -> ResNet:
    torch.manual_seed(0)
    return build_revisit_resnet_backbone(cfg, RGB).eval()


@pytest.mark.parametrize("depth", [18, 34, 50, 101])
def test_names_shapes_and_outputs_equal_detectron2s_own_builder(depth):
    ours = build(config(depth))
    theirs = build_resnet_backbone(config(depth), RGB).eval()
    theirs.load_state_dict(ours.state_dict(), strict=True)
    x = torch.randn(1, 3, 64, 64)
    for name, value in theirs(x).items():
        assert torch.equal(ours(x)[name], value)


def test_own_stages_equal_detectron2s_where_both_can_build_them():
    """RES4_STRIDE 1 sends the builder down its own path; undoing that stride must give Detectron2's network."""
    cfg = config(50)
    theirs = build_resnet_backbone(cfg, RGB).eval()
    cfg.MODEL.RESNETS.RES4_STRIDE = 1
    ours = build(cfg)
    for block, reference in zip(ours.res4, theirs.res4, strict=True):
        block.conv2.stride = reference.conv2.stride
        if block.shortcut is not None:
            block.shortcut.stride = reference.shortcut.stride
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(ours(x)["res5"], theirs(x)["res5"])


@pytest.mark.parametrize("depth", [18, 50])
@pytest.mark.parametrize(
    ("options", "strides"),
    [
        ({}, (4, 8, 16, 32)),
        ({"RES5_DILATION": 2}, (4, 8, 16, 16)),
        ({"RES4_DILATION": 2, "RES5_DILATION": 4}, (4, 8, 8, 8)),
        ({"RES4_STRIDE": 1}, (4, 8, 8, 16)),
        ({"STEM_TYPE": "cifar"}, (1, 2, 4, 8)),
    ],
)
def test_strides_and_dilations_are_the_demanded_ones(depth, options, strides):
    model = build(config(depth, **options))
    if "STEM_TYPE" not in options:
        model.load_state_dict(build(config(depth)).state_dict(), strict=True)  # same names, same shapes
    assert tuple(spec.stride for spec in model.output_shape().values()) == strides
    x = torch.randn(1, 3, 64, 64)
    for (name, value), stride in zip(model(x).items(), strides, strict=True):
        assert value.shape[-1] == 64 // stride, name
    for stage in ("res4", "res5"):
        dilation = options.get(f"{stage.upper()}_DILATION", 1)
        spatial = [conv for block in getattr(model, stage) for conv in block.children() if conv.kernel_size == (3, 3)]
        assert spatial and all(conv.dilation == (dilation, dilation) == conv.padding for conv in spatial)


@pytest.mark.parametrize(
    ("key", "value"), [("RES4_DILATION", 3), ("RES5_DILATION", 8), ("RES4_STRIDE", 3), ("DEPTH", 51)]
)
def test_impossible_options_are_named(key, value):
    with pytest.raises(UserError, match=f"{key} is {value}, expected one of 1"):
        build(config(50, **{key: value}))


def test_dilated_c5_has_512_channels_at_stride_16():
    cfg = config(50, RES5_DILATION=2, OUT_FEATURES=["res5"])
    model = build_dilated_c5_backbone(cfg, RGB)
    assert (model.output_shape()["c5"].channels, model.output_shape()["c5"].stride) == (512, 16)
    assert model(torch.randn(2, 3, 64, 96))["c5"].shape == (2, 512, 4, 6)
    assert model.conv.kernel_size == (3, 3) and model.conv.norm is not None and model.conv.bias is None
