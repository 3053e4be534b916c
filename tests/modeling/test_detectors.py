"""FPN against Detectron2's own, the recipes against its model zoo's, and what FREEZE_AT freezes in each detector."""

import copy

import pytest
import torch
from checkpoints import load_into, run_checkpoint, write_converted
from runs import assert_same
from tiny import tiny_config

from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.convert import convert
from revisit.checkpoint.reading import read_checkpoint
from revisit.engine.setup import make_config
from revisit.errors import UserError
from revisit.keys import dotted_keys
from revisit.modeling.detectors import keep_layouts

from detectron2 import model_zoo
from detectron2.config import CfgNode
from detectron2.layers import FrozenBatchNorm2d
from detectron2.modeling import build_backbone, build_model
from detectron2.modeling.poolers import ROIPooler
from detectron2.structures import Boxes

ALL = ["res2", "res3", "res4", "res5"]
FPN = ("MODEL.BACKBONE.NAME", "build_revisit_fpn_backbone", "MODEL.FPN.OUT_CHANNELS", 16, "MODEL.FPN.NORM", "BN")
BOX_HEAD = ("MODEL.ROI_BOX_HEAD.NAME", "FastRCNNConvFCHead", "MODEL.ROI_BOX_HEAD.NUM_FC", 1)
BOX_HEAD += ("MODEL.ROI_BOX_HEAD.FC_DIM", 8)
TWO_STAGES = (*FPN, "MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "MODEL.ROI_HEADS.NAME", "StandardROIHeads")
TWO_STAGES += ("MODEL.RESNETS.OUT_FEATURES", ALL, "MODEL.FPN.IN_FEATURES", ALL, *BOX_HEAD)
TWO_STAGES += ("MODEL.RPN.IN_FEATURES", ["p2", "p6"], "MODEL.ROI_HEADS.IN_FEATURES", ["p2"])
ONE_STAGE = (*FPN, "MODEL.META_ARCHITECTURE", "RetinaNet")
ONE_STAGE += ("MODEL.RESNETS.OUT_FEATURES", ALL[1:], "MODEL.FPN.IN_FEATURES", ALL[1:])
C4 = ("MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "MODEL.ROI_HEADS.NAME", "Res5NormROIHeads")
R50 = ("MODEL.RESNETS.DEPTH", 50, "MODEL.RESNETS.WIDTH_PER_GROUP", 4)
C4 += (*R50, "MODEL.RESNETS.OUT_FEATURES", ["res4"])
C5 = ("MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "MODEL.ROI_HEADS.NAME", "StandardROIHeads")
C5 += ("MODEL.BACKBONE.NAME", "build_dilated_c5_backbone", *BOX_HEAD)
C5 += ("MODEL.RPN.IN_FEATURES", ["c5"], "MODEL.ROI_HEADS.IN_FEATURES", ["c5"])
DETECTORS = {"FPN": TWO_STAGES, "RetinaNet": ONE_STAGE, "C4": C4, "C5": C5}


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [("FPN", "build_resnet_fpn_backbone"), ("RetinaNet", "build_retinanet_resnet_fpn_backbone")],
)
@torch.no_grad()
def test_the_fpn_equals_detectron2s(kind, theirs):
    cfg = tiny_config(*DETECTORS[kind], "MODEL.RESNETS.RES2_OUT_CHANNELS", 64, "MODEL.RESNETS.STEM_OUT_CHANNELS", 64)
    ours = build_backbone(cfg).eval()
    cfg.MODEL.BACKBONE.NAME = theirs
    reference = build_backbone(cfg).eval()
    reference.load_state_dict(ours.state_dict(), strict=True)
    assert ours.output_shape() == reference.output_shape() and ours.size_divisibility == reference.size_divisibility
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    found, expected = ours(x), reference(x)
    assert list(found) == list(expected) and all(torch.equal(found[name], expected[name]) for name in expected)


# What weights that were not trained by Detectron2 need, and what has no influence on a run.
NEEDED = {
    "MODEL.BACKBONE.NAME", "MODEL.BACKBONE.FREEZE_AT", "MODEL.RESNETS.NORM", "MODEL.FPN.NORM",
    "MODEL.RESNETS.STRIDE_IN_1X1", "MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD", "INPUT.FORMAT", "MODEL.WEIGHTS",
    "TEST.PRECISE_BN.ENABLED", "OUTPUT_DIR", "MODEL.DEVICE", "SEED",
}  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "theirs"),
    [
        ("coco_faster_rcnn_R50_FPN", "COCO-Detection/faster_rcnn_R_50_FPN_1x.yaml"),
        ("coco_mask_rcnn_R50_FPN", "COCO-InstanceSegmentation/mask_rcnn_R_50_FPN_1x.yaml"),
        ("coco_retinanet_R50_FPN", "COCO-Detection/retinanet_R_50_FPN_1x.yaml"),
        ("voc_faster_rcnn_R50_FPN", "PascalVOC-Detection/faster_rcnn_R_50_FPN.yaml"),
    ],
)
def test_a_recipe_differs_from_the_model_zoos_only_by_what_the_weights_need(recipe, theirs):
    zoo = dotted_keys(model_zoo.get_config(theirs))
    ours = dotted_keys(make_config(f"configs/detection/{recipe}.yaml", (), num_processes=8))
    is_retinanet = "retinanet" in recipe
    unread = ("MODEL.RETINANET",) if not is_retinanet else ("MODEL.RPN", "MODEL.ROI_", "MODEL.PROPOSAL_GENERATOR")
    for key in zoo.keys() - NEEDED:
        if not key.startswith(unread):
            found, expected = ours[key], zoo[key]
            if key == "MODEL.ANCHOR_GENERATOR.SIZES":
                assert torch.allclose(torch.tensor(found), torch.tensor(expected), atol=1e-3)
            else:
                assert found == expected or tuple(found) == tuple(expected), key
    assert ours["MODEL.RESNETS.NORM"] == ours["MODEL.FPN.NORM"] == "naiveSyncBN"  # SyncBN of 8 processes on a CPU


def stages_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Stem, res2 to res5, wherever they lie."""
    resnet = getattr(model.backbone, "bottom_up", model.backbone)
    last = getattr(resnet, "res5", None) or model.roi_heads.res5[:3]
    return [resnet.stem, resnet.res2, resnet.res3, resnet.res4, last]


@pytest.mark.parametrize("freeze_at", range(6))
@pytest.mark.parametrize("kind", DETECTORS)
def test_freeze_at_freezes_as_many_stages_with_their_batch_norm_and_nothing_else(kind, freeze_at):
    model = build_model(tiny_config(*DETECTORS[kind], "MODEL.BACKBONE.FREEZE_AT", freeze_at)).train()
    stages = stages_of(model)
    for number, stage in enumerate(stages, start=1):
        is_frozen = number <= freeze_at
        norms = [module for module in stage.modules() if "BatchNorm" in type(module).__name__]
        assert norms and all(isinstance(norm, FrozenBatchNorm2d) == is_frozen for norm in norms)
        assert not is_frozen or not any(parameter.requires_grad for parameter in stage.parameters())
        assert is_frozen or all(parameter.requires_grad for parameter in stage.parameters())
    in_stages = {id(parameter) for stage in stages for parameter in stage.parameters()}
    assert all(parameter.requires_grad for parameter in model.parameters() if id(parameter) not in in_stages)


@pytest.mark.parametrize("kind", DETECTORS)
def test_every_backbone_tensor_arrives_in_the_detector_and_comes_back_out_of_its_checkpoint(kind, tmp_path):
    pretrained = run_checkpoint(*(R50 if kind == "C4" else ()))
    generator = torch.Generator().manual_seed(0)
    for key, value in pretrained["model"].items():
        if "running" in key:
            value.uniform_(0.5, 2, generator=generator)
    cfg = tiny_config(*DETECTORS[kind], "OUTPUT_DIR", str(tmp_path))
    detector = load_into(cfg, write_converted(pretrained, tmp_path / "backbone.pth"))
    expected = {
        key.removeprefix("backbone."): v for key, v in pretrained["model"].items() if key.startswith("backbone.")
    }
    RevisitCheckpointer(detector, cfg).save("model_final", iteration=9)
    assert_same(convert(read_checkpoint(tmp_path / "model_final.pth")).tensors, expected)


def test_a_c4_detector_without_its_res5_is_refused(tmp_path):
    content = torch.load(path := write_converted(run_checkpoint(*R50), tmp_path / "backbone.pth"))
    content["model"] = {key: value for key, value in content["model"].items() if not key.startswith("res5.")}
    torch.save(content, path)
    with pytest.raises(UserError, match="first without: roi_heads.res5.0.shortcut.weight"):
        load_into(tiny_config(*C4), path)


def norm_keys(cfg: CfgNode) -> dict[str, str]:
    return {key: value for key, value in dotted_keys(cfg).items() if key.endswith(".NORM") and "MODEL." in key}


@pytest.mark.parametrize(("processes", "here"), [(1, "BN"), (2, "naiveSyncBN")])
def test_sync_bn_of_every_part_follows_the_number_of_processes(processes, here):
    file = "configs/detection/coco_mask_rcnn_R50_FPN.yaml"
    keys = [key for key in norm_keys(make_config(file, ())) if "PANOPTIC" not in key]
    assert {"MODEL.RETINANET.NORM", "MODEL.ROI_MASK_HEAD.NORM", "MODEL.ROI_BOX_HEAD.NORM"} <= set(keys)
    options = [word for key in keys for word in (key, "SyncBN")]
    found = norm_keys(make_config(file, options, num_processes=processes))
    assert {found[key] for key in keys} == {here}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_gradients_of_maps_come_back_from_the_poolers_in_the_maps_layout(dtype):
    plain = ROIPooler(3, (0.25, 0.125), 0, "ROIAlignV2", 16, 2)
    kept = copy.deepcopy(plain)
    keep_layouts(torch.nn.ModuleList([kept]))
    boxes = [Boxes(torch.tensor([[1.0, 2, 20, 30], [4, 4, 12, 10]])), Boxes(torch.tensor([[0.0, 0, 60, 50]]))]
    gradients = {}
    for pooler in (plain, kept):
        generator = torch.Generator().manual_seed(0)
        maps = [torch.randn(2, 5, size, size, generator=generator).to(dtype) for size in (16, 8)]
        maps = [each.to(memory_format=torch.channels_last).requires_grad_() for each in maps]
        with torch.autocast("cpu", enabled=dtype == torch.bfloat16):
            pooled = pooler([each * 1 for each in maps], boxes)
        pooled.double().square().sum().backward()
        gradients[pooler] = [each.grad for each in maps]
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in gradients[kept])
    for one, other in zip(gradients[kept], gradients[plain], strict=True):
        assert one.dtype == dtype and (one - other).abs().max() < 0.01 * other.abs().max()
