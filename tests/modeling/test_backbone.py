"""The one backbone builder against Detectron2's own, and where MoCo's C4 detectors put the pretrained res5."""

from pathlib import Path

import pytest
import torch
from checkpoints import load_into, maps_of, random_resnet
from runs import assert_same
from tiny import tiny_config

from revisit.checkpoint.convert import convert
from revisit.checkpoint.flags import flags_of, write_flags
from revisit.config import add_revisit_config
from revisit.errors import UserError
from revisit.modeling.backbone.description import backbone_keys, describe
from revisit.modeling.backbone.resnet import build_revisit_resnet_backbone
from revisit.modeling.detectors import build_dilated_c5_backbone

from detectron2.config import CfgNode, get_cfg
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_backbone, build_model
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


def test_dilated_c5_has_512_channels_at_stride_16():
    cfg = config(50, RES5_DILATION=2, OUT_FEATURES=["res5"])
    model = build_dilated_c5_backbone(cfg, RGB)
    assert (model.output_shape()["c5"].channels, model.output_shape()["c5"].stride) == (512, 16)
    assert model(torch.randn(2, 3, 64, 96))["c5"].shape == (2, 512, 4, 6)
    assert model.conv.kernel_size == (3, 3) and model.conv.norm is not None and model.conv.bias is None


NARROW = ["MODEL.DEVICE", "cpu", "MODEL.RESNETS.STEM_OUT_CHANNELS", 8, "MODEL.RESNETS.RES2_OUT_CHANNELS", 16,
          "MODEL.RESNETS.WIDTH_PER_GROUP", 4, "MODEL.RESNETS.NORM", "BN"]  # fmt: skip


def detector_config(name: str, *options: object) -> CfgNode:
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_file(f"configs/detection/{name}.yaml")
    cfg.merge_from_list([*NARROW, *options])
    return cfg


@pytest.fixture
def pretrained(tmp_path) -> Path:
    """Weights of a whole backbone, as tools/convert_to_d2.py writes them."""
    torch.manual_seed(1)
    cfg = detector_config("voc_faster_rcnn_R50_C4", "MODEL.RESNETS.OUT_FEATURES", ["res5"])
    backbone = build_backbone(cfg)
    torch.save({"model": backbone.state_dict(), "matching_heuristics": True}, tmp_path / "backbone.pth")
    write_flags(tmp_path / "backbone.pth", flags_of(cfg, describe(backbone)), source="test")
    return tmp_path / "backbone.pth"


def test_every_pretrained_tensor_has_its_place_in_a_c4_detector_whose_res5_ends_in_a_batch_norm(pretrained):
    weights = torch.load(pretrained)["model"]
    model = load_into(detector_config("voc_faster_rcnn_R50_C4"), pretrained)
    expected = [key for key in weights if not key.endswith("num_batches_tracked")]
    assert len(backbone_keys(model)) == len(expected)
    state = model.state_dict()
    for name in expected:
        place = f"roi_heads.{name}" if name.startswith("res5.") else f"backbone.{name}"
        assert torch.equal(state[place], weights[name]), place
    last = list(model.roi_heads.res5.children())[-1]
    assert isinstance(last, torch.nn.BatchNorm2d) and last.num_features == 128


def test_a_c4_detector_without_its_res5_is_refused(pretrained):
    content = torch.load(pretrained)
    content["model"] = {key: value for key, value in content["model"].items() if not key.startswith("res5.")}
    torch.save(content, pretrained)
    with pytest.raises(UserError, match="first without: roi_heads.res5.0.shortcut.weight"):
        load_into(detector_config("voc_faster_rcnn_R50_C4"), pretrained)


@pytest.mark.parametrize("name", ["voc_faster_rcnn_R50_C4", "coco_mask_rcnn_R50_C4"])
def test_c4_detectors_train_and_predict(name):
    torch.manual_seed(0)
    model = build_model(detector_config(name))
    image = torch.randint(0, 256, (3, 96, 128), dtype=torch.uint8)
    truth = Instances((96, 128), gt_boxes=Boxes(torch.tensor([[8.0, 8, 60, 70]])), gt_classes=torch.tensor([3]))
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
