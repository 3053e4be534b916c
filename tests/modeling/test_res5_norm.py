"""MoCo's C4 detectors: the pretrained res5 becomes the box head, and none of it is left out unnoticed."""

from pathlib import Path

import pytest
import torch
from checkpoints import load_into

from revisit.checkpoint.flags import flags_of, write_flags
from revisit.config import add_revisit_config
from revisit.errors import UserError
from revisit.modeling.backbone.description import backbone_keys, describe

from detectron2.config import CfgNode, get_cfg
from detectron2.modeling import build_backbone, build_model
from detectron2.structures import Boxes, Instances, PolygonMasks
from detectron2.utils.events import EventStorage

NARROW = ["MODEL.DEVICE", "cpu", "MODEL.RESNETS.STEM_OUT_CHANNELS", 8, "MODEL.RESNETS.RES2_OUT_CHANNELS", 16,
          "MODEL.RESNETS.WIDTH_PER_GROUP", 4, "MODEL.RESNETS.NORM", "BN"]  # fmt: skip


def config(name: str, *options: object) -> CfgNode:
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_file(f"configs/detection/{name}.yaml")
    cfg.merge_from_list([*NARROW, *options])
    return cfg


@pytest.fixture
def pretrained(tmp_path) -> Path:
    """Weights of a whole backbone, as tools/convert_to_d2.py writes them."""
    torch.manual_seed(1)
    cfg = config("voc_faster_rcnn_R50_C4", "MODEL.RESNETS.OUT_FEATURES", ["res5"])
    backbone = build_backbone(cfg)
    torch.save({"model": backbone.state_dict(), "matching_heuristics": True}, tmp_path / "backbone.pth")
    write_flags(tmp_path / "backbone.pth", flags_of(cfg, describe(backbone)), source="test")
    return tmp_path / "backbone.pth"


def test_every_pretrained_tensor_has_its_place_in_a_c4_detector_whose_res5_ends_in_a_batch_norm(pretrained):
    weights = torch.load(pretrained)["model"]
    model = load_into(config("voc_faster_rcnn_R50_C4"), pretrained)
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
        load_into(config("voc_faster_rcnn_R50_C4"), pretrained)


@pytest.mark.parametrize("name", ["voc_faster_rcnn_R50_C4", "coco_mask_rcnn_R50_C4"])
def test_c4_detectors_train_and_predict(name):
    torch.manual_seed(0)
    model = build_model(config(name))
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
