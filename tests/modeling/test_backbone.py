"""The one backbone builder against Detectron2's own, and where MoCo's C4 detectors put the pretrained res5."""

import pytest
import torch
from checkpoints import maps_of, random_resnet
from runs import assert_same
from tiny import tiny_config

from revisit.checkpoint.convert import convert
from revisit.config import add_revisit_config
from revisit.modeling.backbone.resnet import build_revisit_resnet_backbone

from detectron2.config import CfgNode, get_cfg
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_model
from detectron2.modeling.backbone.resnet import ResNet, build_resnet_backbone
from detectron2.structures import Boxes, Instances, PolygonMasks
from detectron2.utils.events import EventStorage

RGB = ShapeSpec(channels=3)


def config(depth: int, **options: object) -> CfgNode:
    widths = {"STEM_OUT_CHANNELS": 64, "RES2_OUT_CHANNELS": 64 if depth < 50 else 256}
    cfg = tiny_config("MODEL.RESNETS.OUT_FEATURES", ["res2", "res3", "res4", "res5"])
    cfg.MODEL.RESNETS.update({"DEPTH": depth, **widths, **options})
    return cfg


def build(cfg: CfgNode) -> ResNet:
    torch.manual_seed(0)
    return build_revisit_resnet_backbone(cfg, RGB).eval()


@pytest.mark.parametrize(
    ("depth", "options"),
    [(18, {}), (34, {}), (101, {"OUT_FEATURES": ["res4"]}), (50, {"RES5_DILATION": 2, "STRIDE_IN_1X1": False}),
     (50, {"NUM_GROUPS": 4, "WIDTH_PER_GROUP": 8, "OUT_FEATURES": ["stem", "res5"]})],
)  # fmt: skip
def test_names_random_numbers_and_outputs_are_those_of_detectron2s_own_builder(depth, options):
    ours = build(config(depth, **options))
    torch.manual_seed(0)
    theirs = build_resnet_backbone(config(depth, **options), RGB).eval()
    assert_same(ours.state_dict(), theirs.state_dict())
    x = torch.randn(1, 3, 64, 64)
    assert_same(ours(x), theirs(x))
    assert ours.output_shape() == theirs.output_shape()


@pytest.mark.parametrize("depth", [18, 50])
@pytest.mark.parametrize(
    ("options", "strides"),
    [
        ({}, (4, 8, 16, 32)),
        ({"RES5_DILATION": 2}, (4, 8, 16, 16)),
        ({"RES4_DILATION": 2, "RES5_DILATION": 4}, (4, 8, 8, 8)),
        ({"RES4_DILATION": 2, "RES5_DILATION": 4, "HALVE_FIRST_DILATION": True}, (4, 8, 8, 8)),
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
        first = dilation // 2 if options.get("HALVE_FIRST_DILATION") else dilation
        dilations = [(first, first)] + [(dilation, dilation)] * (len(spatial) - 1)
        assert [conv.dilation for conv in spatial] == dilations == [conv.padding for conv in spatial]


@torch.no_grad()
def test_with_the_first_dilation_halved_the_network_is_torchvisions():
    theirs = random_resnet("resnet50", replace_stride_with_dilation=[False, True, True]).double()
    ours = build(config(50, RES4_DILATION=2, RES5_DILATION=4, HALVE_FIRST_DILATION=True)).double()
    ours.load_state_dict(convert(theirs.state_dict()).tensors)
    x = torch.randn(1, 3, 65, 97, dtype=torch.float64)
    expected = maps_of(theirs, x)
    assert torch.allclose(ours(x)["res5"], expected, rtol=0, atol=1e-12 * expected.max().item())


NARROW = ["MODEL.DEVICE", "cpu", "MODEL.RESNETS.STEM_OUT_CHANNELS", 8, "MODEL.RESNETS.RES2_OUT_CHANNELS", 16,
          "MODEL.RESNETS.WIDTH_PER_GROUP", 4, "MODEL.RESNETS.NORM", "BN"]  # fmt: skip


def detector_config(name: str, *options: object) -> CfgNode:
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_file(f"configs/detection/{name}.yaml")
    cfg.merge_from_list([*NARROW, *options])
    return cfg


@pytest.mark.parametrize("name", ["voc_faster_rcnn_R50_C4", "coco_mask_rcnn_R50_C4"])
def test_c4_detectors_train_and_predict(name):
    torch.manual_seed(0)
    model = build_model(detector_config(name))
    image = torch.randint(0, 256, (3, 96, 128), dtype=torch.uint8)
    truth = Instances((96, 128), gt_boxes=Boxes(torch.tensor([[8.0, 8, 60, 70]])), gt_classes=torch.tensor([3]))
    last = model.roi_heads.res5[-1]
    assert isinstance(last, torch.nn.BatchNorm2d) and last.num_features == 128
    if model.roi_heads.mask_on:
        truth.gt_masks = PolygonMasks([[[8, 8, 60, 8, 60, 70]]])
    with EventStorage():
        losses = model([{"image": image, "instances": truth}] * 2)
    assert all(torch.isfinite(value) for value in losses.values())
    assert ("loss_mask" in losses) == model.roi_heads.mask_on
    sum(losses.values()).backward()
    assert model.roi_heads.res5[0].conv1.weight.grad.any()
    with torch.no_grad():
        assert "instances" in model.eval()([{"image": image, "height": 96, "width": 128}])[0]
