"""ViT and ConvNeXt against timm's own networks: features, weights in and out, training, and what is refused."""

import re
import sys
from pathlib import Path

import pytest
import timm
import torch
from checkpoints import load_into, moco, write_converted
from commands import run
from runs import assert_same
from tiny import random_views, step, tiny_config, tiny_model
from torch.nn import functional as F

from projects.common.frozen_backbone import FrozenBackbone
from revisit.checkpoint.convert import convert, flags_to_config
from revisit.checkpoint.export import library_tensors, load_backbone, model_card, write_tensors
from revisit.checkpoint.flags import flags_of, write_flags
from revisit.engine.config_checks import check_config
from revisit.errors import UserError
from revisit.modeling.backbone.description import describe
from revisit.modeling.backbone.pyramids import STAGES, SimpleFeaturePyramid

from detectron2.modeling import build_backbone, build_model
from detectron2.structures import Boxes, Instances
from detectron2.utils.events import EventStorage

VIT = ("MODEL.BACKBONE.NAME", "build_vit_backbone", "MODEL.VIT.PATCH_SIZE", 8, "MODEL.VIT.EMBED_DIM", 64)
VIT += ("MODEL.VIT.DEPTH", 4, "MODEL.VIT.NUM_HEADS", 1, "MODEL.VIT.IMAGE_SIZE", 32)
CONVNEXT = ("MODEL.BACKBONE.NAME", "build_convnext_backbone", "MODEL.CONVNEXT.DEPTHS", (1, 1, 2, 1))
CONVNEXT += ("MODEL.CONVNEXT.DIMS", (8, 16, 24, 32))
FAMILIES = {"vit": (*VIT, "VIEWS.SMALL_SIZE", 24), "convnext": (*CONVNEXT, "VIEWS.SMALL_SIZE", 32)}
HEADS = (
    "MODEL.META_ARCHITECTURE",
    "GeneralizedRCNN",
    "MODEL.ROI_HEADS.NAME",
    "StandardROIHeads",
    "MODEL.FPN.NORM",
    "GN",
)
HEADS += (
    "MODEL.ROI_BOX_HEAD.NAME",
    "FastRCNNConvFCHead",
    "MODEL.ROI_BOX_HEAD.NUM_FC",
    1,
    "MODEL.ROI_BOX_HEAD.FC_DIM",
    8,
)
HEADS += ("MODEL.FPN.OUT_CHANNELS", 32, "MODEL.RPN.IN_FEATURES", ["p3", "p4"], "MODEL.ROI_HEADS.IN_FEATURES", ["p3"])
DETECTORS = {
    "vit": (*FAMILIES["vit"], *HEADS, "MODEL.BACKBONE.NAME", "build_vit_pyramid_backbone"),
    "convnext": (*FAMILIES["convnext"], *HEADS, "MODEL.BACKBONE.NAME", "build_convnext_fpn_backbone"),
}
DETECTORS["convnext"] += ("MODEL.CONVNEXT.OUT_FEATURES", [*STAGES], "MODEL.FPN.IN_FEATURES", [*STAGES])


def random_network(family: str) -> torch.nn.Module:
    """timm's, with a classifier, in evaluation mode; unlike at the start, no tensor is about 0 or 1."""
    if family == "vit":
        sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 4, "num_heads": 1}
        network = timm.models.VisionTransformer(**sizes, num_classes=3, dynamic_img_size=True)
    else:
        network = timm.models.ConvNeXt(depths=(1, 1, 2, 1), dims=(8, 16, 24, 32), num_classes=3)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.data.uniform_(-0.3, 0.3, generator=generator)
    return network.eval()


def images(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("size", [(32, 32), (64, 96)], ids=str)  # the position embedding's, and another
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_map_of_converted_weights_is_timms(family, size):
    network, x = random_network(family), images(2, 3, *size)
    found = convert(network.state_dict())
    backbone = found.description.build(flags_to_config(found.flags)).eval()
    backbone.load_state_dict(found.tensors, strict=True)
    *_, last = backbone(x).values()
    expected = network.forward_features(x)
    if family == "vit":
        expected = expected[:, 1:].transpose(1, 2).unflatten(2, (size[0] // 8, size[1] // 8))
    assert found.source == "timm" and last.shape == expected.shape
    assert (last - expected).abs().max() <= 1e-4 * expected.abs().max()


@torch.no_grad()
def test_every_map_of_a_convnext_is_timms_and_stages_that_nothing_needs_are_not_built():
    network, x = random_network("convnext"), images(1, 3, 64, 64)
    expected = dict(zip(STAGES, network.forward_intermediates(x, intermediates_only=True), strict=True))
    backbone = build_backbone(tiny_config(*CONVNEXT, "MODEL.CONVNEXT.OUT_FEATURES", ["res3", "res4"])).eval()
    assert len(backbone.convnext.stages) == 3
    backbone.convnext.load_state_dict(network.state_dict(), strict=False)
    found, shapes = backbone(x), backbone.output_shape()
    assert list(found) == list(shapes) == ["res3", "res4"]
    for name, value in found.items():
        assert (value - expected[name]).abs().max() <= 1e-4 * expected[name].abs().max()
        assert (shapes[name].channels, 64 // shapes[name].stride) == value.shape[1:3]


@torch.no_grad()
def test_a_vit_pads_images_that_its_patches_do_not_divide():
    backbone, x = build_backbone(tiny_config(*VIT)).eval(), images(1, 3, 27, 40)
    found = backbone(x)["last_feat"]
    assert found.shape[2:] == (4, 5) and torch.equal(found, backbone(F.pad(x, (0, 0, 0, 5)))["last_feat"])


@pytest.mark.parametrize(
    ("family", "options"), [("vit", ()), ("vit", ("MODEL.VIT.FINAL_NORM", False)), ("convnext", ())]
)
@torch.no_grad()
def test_export_then_conversion_is_the_identity_and_the_snippet_computes_the_features(
    family, options, tmp_path, monkeypatch
):
    torch.manual_seed(0)
    cfg = tiny_config(*FAMILIES[family], *options)
    backbone = build_backbone(cfg).eval()
    path, exported = tmp_path / "backbone.pth", tmp_path / "exported.pth"
    write_tensors(backbone.state_dict(), path)
    write_flags(path, flags_of(cfg, describe(backbone)), source="test")
    weights = load_backbone(path)
    write_tensors(library_tensors(weights, "timm"), exported)
    assert_same(convert(torch.load(exported)).tensors, weights.tensors)
    monkeypatch.chdir(tmp_path)
    names, x = {}, images(1, 3, 64, 32)
    (code,) = re.findall(r"```python\n(.*?)```", model_card(weights, exported, "timm"), re.DOTALL)
    exec(code, names)
    model = names["model"]
    features = model(x) if family == "vit" else model.forward_features(x).mean((2, 3))
    (expected,) = backbone(x).values()
    assert (features - expected.mean((2, 3))).abs().max() < 1e-4


@pytest.mark.parametrize("method", ["MoCo", "KNNMoCo", "DenseCL", "SimCLR", "BYOL", "SwAV"])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_learns_by_every_method_without_groups_of_batch_norm(family, method):
    small = 0 if method == "DenseCL" else 2
    options = (*FAMILIES[family], "MODEL.META_ARCHITECTURE", method, "VIEWS.NUM_SMALL", small, "MOCO.BN_GROUP", 128)
    options += ("MODEL.BACKBONE.FREEZE_AT", int(family == "vit"), "SOLVER.MAX_ITER", 1)
    check_config(tiny_config(*options), num_processes=1)
    model = tiny_model(*options).train()
    losses, _ = step(model, random_views(4, small=FAMILIES[family][-1], num_small=small))
    sum(losses.values()).backward()
    assert not getattr(model, "shuffle_bn", False)
    for name, parameter in model.named_parameters():
        is_fixed = name.startswith(("momentum_", "backbone.vit.patch_embed."))
        assert parameter.requires_grad != is_fixed and (is_fixed or parameter.grad.isfinite().all()), name


@pytest.mark.parametrize("freeze_at", range(6))
@pytest.mark.parametrize("family", FAMILIES)
def test_freeze_at_freezes_as_many_stages(family, freeze_at):
    backbone = build_backbone(tiny_config(*FAMILIES[family], "MODEL.BACKBONE.FREEZE_AT", freeze_at))
    stages = [f"convnext.{name}." for name in ("stem", *(f"stages.{n}" for n in range(4)))]
    if family == "vit":
        stages = ["vit.patch_embed.", *(f"vit.blocks.{n}." for n in range(3)), "vit."]
    for name, parameter in backbone.named_parameters():
        assert parameter.requires_grad != name.startswith(tuple(stages[:freeze_at])), name


@torch.no_grad()
def test_the_simple_pyramid_is_what_the_paper_describes():
    torch.manual_seed(0)
    pyramid = SimpleFeaturePyramid(build_backbone(tiny_config(*VIT)), 16).eval()
    for parameter in pyramid.parameters():
        parameter.uniform_(-0.5, 0.5)
    x, w = images(2, 3, 48, 32), pyramid.state_dict()
    found, below = pyramid(x), pyramid.bottom_up(x)["last_feat"]

    def norm(y: torch.Tensor, key: str) -> torch.Tensor:
        weight, bias = w[f"{key}.weight"], w[f"{key}.bias"]
        return F.layer_norm(y.movedim(1, 3), weight.shape, weight, bias, 1e-6).movedim(3, 1)

    def double(y: torch.Tensor, key: str) -> torch.Tensor:
        return F.conv_transpose2d(y, w[f"{key}.weight"], w[f"{key}.bias"], stride=2)

    quarter = double(F.gelu(norm(double(below, "scales.p1.0"), "scales.p1.1")), "scales.p1.3")
    scaled = {"p1": (quarter, 4), "p2": (double(below, "scales.p2.0"), 1), "p3": (below, 0)}
    scaled["p4"] = (F.max_pool2d(below, 2), 1)
    for name, (y, start) in scaled.items():
        y = norm(F.conv2d(y, w[f"scales.{name}.{start}.weight"]), f"scales.{name}.{start + 1}")
        y = norm(F.conv2d(y, w[f"scales.{name}.{start + 2}.weight"], padding=1), f"scales.{name}.{start + 3}")
        assert torch.allclose(found[name], y, atol=1e-5), name
    assert torch.equal(found["p5"], found["p4"][:, :, ::2, ::2]) and pyramid.size_divisibility == 16
    assert {name: spec.stride for name, spec in pyramid.output_shape().items()} == {f"p{n}": 2**n for n in range(1, 6)}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_detector_holds_every_tensor_of_a_converted_run_and_learns(family, tmp_path):
    model, cfg = tiny_model(*FAMILIES[family]), tiny_config(*FAMILIES[family])
    run_of_it = {"model": model.state_dict(), "flags": flags_of(cfg, describe(model))}
    weights = write_converted(run_of_it, tmp_path / "backbone.pth")
    detector = load_into(tiny_config(*DETECTORS[family]), weights)
    assert_same(detector.backbone.bottom_up.state_dict(), model.backbone.state_dict())
    image = torch.randint(0, 256, (3, 60, 76), dtype=torch.uint8)
    truth = Instances((60, 76), gt_boxes=Boxes(torch.tensor([[8.0, 8, 40, 50]])), gt_classes=torch.tensor([3]))
    with EventStorage():
        losses = detector.train()([{"image": image, "instances": truth}])
    sum(losses.values()).backward()
    assert all(p.grad.isfinite().all() for p in detector.backbone.bottom_up.parameters())
    with torch.no_grad():
        assert "instances" in detector.eval()([{"image": image, "height": 60, "width": 76}])[0]
    finetuned = {**run_of_it, "model": detector.state_dict()}
    assert_same(convert(finetuned).tensors, model.backbone.state_dict())
    del run_of_it["model"][next(key for key in run_of_it["model"] if key.startswith("backbone."))]
    with pytest.raises(UserError, match="no value for"):
        convert(run_of_it)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_frozen_features_are_those_of_the_converted_run(family, tmp_path):
    model, cfg = tiny_model(*FAMILIES[family]), tiny_config(*FAMILIES[family])
    run_of_it = {"model": model.state_dict(), "flags": flags_of(cfg, describe(model))}
    cfg.MODEL.WEIGHTS = str(write_converted(run_of_it, tmp_path / "backbone.pth"))
    frozen, x = FrozenBackbone(cfg), torch.randint(0, 256, (2, 3, 40, 32), dtype=torch.uint8)
    assert torch.allclose(F.normalize(frozen.pooled(x), dim=1), model.eval().extract_features(x), atol=1e-5)


TINY = {
    "vit": "MODEL.VIT.EMBED_DIM 16 MODEL.VIT.NUM_HEADS 2 MODEL.VIT.DEPTH 1",
    "convnext": "MODEL.CONVNEXT.DIMS (8,8,8,8) MODEL.CONVNEXT.DEPTHS (1,1,1,1)",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_pretrain_and_finetune_by_the_recipes(family, toy_root, tmp_path):
    train, tiny = f"python tools/train_net.py --num-gpus 2 --config-file configs/toy/{family}", TINY[family]
    tiny += " SOLVER.IMS_PER_BATCH 4 SOLVER.WARMUP_ITERS 0"
    alone = "DATASETS.TEST () KNN_EVAL.BANK '' KNN_EVAL.LINEAR False TEST.EVAL_EPOCHS 0 DATALOADER.NUM_WORKERS 0 "
    alone += "MOCO.QUEUE_SIZE 40 NEIGHBORS.WARMUP_EPOCHS 0"
    run(f"{train}_pretrain.yaml SOLVER.MAX_ITER 2 OUTPUT_DIR {tmp_path}/a {tiny} {alone}", toy_root)
    text = run(f"python tools/convert_to_d2.py {tmp_path}/a/model_final.pth {tmp_path}/backbone.pth", toy_root)
    assert "revisit layout" in text
    finetune = f"{train}_detection.yaml MODEL.WEIGHTS {tmp_path}/backbone.pth SOLVER.MAX_ITER 2 SOLVER.STEPS ()"
    text = run(f"{finetune} DATASETS.TEST () OUTPUT_DIR {tmp_path}/b {tiny}", toy_root)
    assert "2 gloo processes" in text and Path(tmp_path, "b", "model_final.pth").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            (*VIT, "MODEL.VIT.EMBED_DIM", 65, "MODEL.VIT.NUM_HEADS", 2),
            "EMBED_DIM is 65: expected a multiple of .*NUM_HEADS",
        ),
        ((*VIT, "MODEL.VIT.IMAGE_SIZE", 30), "IMAGE_SIZE is 30: expected a multiple of MODEL.VIT.PATCH_SIZE, 8"),
        ((*VIT, "MODEL.BACKBONE.FREEZE_AT", 2), "FREEZE_AT is 2: random layers would stay as they are; expected 1, or"),
        (
            (*CONVNEXT, "MODEL.BACKBONE.FREEZE_AT", 1),
            "FREEZE_AT is 1: random layers would stay as they are; expected 0",
        ),
        (
            (*CONVNEXT, "MODEL.CONVNEXT.OUT_FEATURES", ["res4", "res5"]),
            "CONVNEXT.OUT_FEATURES .*pretraining expects one",
        ),
        ((*DETECTORS["vit"], "MODEL.VIT.PATCH_SIZE", 16, "MODEL.VIT.IMAGE_SIZE", 42), "IMAGE_SIZE is 42"),
        (
            (*DETECTORS["vit"], "MODEL.VIT.PATCH_SIZE", 14, "MODEL.VIT.IMAGE_SIZE", 42),
            "PATCH_SIZE is 14: a pyramid needs",
        ),
        (
            (*VIT, "MODEL.META_ARCHITECTURE", "SemanticSegmentor"),
            "SemanticSegmentor with .*expected build_revisit_resnet",
        ),
    ],
)
def test_what_no_such_network_does_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        check_config(tiny_config("SOLVER.MAX_ITER", 1, *options), num_processes=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_timm_one_line_says_what_to_install(family, monkeypatch):
    tensors = random_network(family).state_dict()
    monkeypatch.setitem(sys.modules, "timm.models", None)
    with pytest.raises(UserError, match="the package timm is not installed: run pip install timm, or choose a ResNet"):
        build_model(tiny_config(*FAMILIES[family]))
    with pytest.raises(UserError, match="the package timm is not installed"):
        convert(tensors)


def test_images_smaller_than_the_stride_of_a_convnext_are_named():
    with pytest.raises(UserError, match="an image of 24 x 40 px: a ConvNeXt needs 32 px on each side"):
        build_backbone(tiny_config(*CONVNEXT))(torch.zeros(1, 3, 24, 40))


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_of_other_projects_are_found_by_their_prefix_and_torchvision_has_none(family):
    tensors = {key: value for key, value in random_network(family).state_dict().items() if not key.startswith("head.")}
    assert convert(moco(tensors)).source == "moco"
    assert_same(convert(moco(tensors)).tensors, convert(tensors).tensors)
    with pytest.raises(UserError, match="not a checkpoint of torchvision: no tensor begins with layer1.0. "):
        convert(tensors, "torchvision")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pos_embed": torch.zeros(1, 0, 64)}, "no plain ViT has 0 rows of 64 channels in pos_embed"),
        (
            {"pos_embed": torch.zeros(1, 16, 64)},
            "no plain ViT has 16 rows of 64 channels in pos_embed: expected a square",
        ),
        ({"blocks.0.ls1.gamma": torch.zeros(64)}, "cannot place vit.blocks.0.ls1.gamma: a ViT of width 64"),
        ({"patch_embed.proj.weight": torch.zeros(64, 3)}, "no pos_embed or no patch_embed.proj.weight of a plain ViT"),
    ],
)
def test_vits_of_another_kind_are_refused(changed, message):
    with pytest.raises(UserError, match=message):
        convert({**random_network("vit").state_dict(), **changed})


def test_a_convnext_that_lacks_a_stage_is_refused():
    tensors = {key: value for key, value in random_network("convnext").state_dict().items() if "stages.3" not in key}
    with pytest.raises(UserError, match="no convolution in stage 3 of a ConvNeXt: expected 4 stages"):
        convert(tensors)
