"""timm's networks as backbones, against timm itself: features, weights in and out, training, and what is refused."""

import copy
import json
import random
import re
from pathlib import Path

import pytest
import timm
import torch
from checkpoints import load_into, moco, run_checkpoint, write_converted
from commands import run
from runs import assert_same
from tiny import random_objects, random_views, step, tiny_config, tiny_model
from torch.nn import functional as F
from trees import refused

from projects.Weights.depthwise import fast_depthwise
from projects.Weights.export import library_tensors, model_card
from projects.Weights.simple_pyramid import SimpleFeaturePyramid
from projects.Weights.stated_weights import default_pixels, flags_of_name, flags_on_hub
from projects.Weights.timm_backbone import TimmBackbone
from projects.Weights.timm_description import TimmDescription
from projects.Weights.timm_networks import build
from revisit.checkpoint.backbone_file import load_backbone, write_tensors
from revisit.checkpoint.convert import convert, stated_flags
from revisit.checkpoint.flags import check_flags, flags_of, flags_to_config, write_flags
from revisit.engine.dry_run import pixelwise
from revisit.errors import UserError
from revisit.keys import Facts, check_values
from revisit.modeling.backbone.description import describe
from revisit.modeling.backbone.resnet import ResNetDescription
from revisit.modeling.bn_groups import BNGroups
from revisit.modeling.grouped_batch_norm import group_batch_norm
from revisit.network.network import Network

from detectron2.modeling import build_backbone, build_model
from detectron2.structures import Boxes, Instances
from detectron2.utils.events import EventStorage

# Small forms of some families: by timm's name, options that make it smaller.
NETWORKS = {
    "resnet26d": {"channels": [8, 8, 16, 16], "stem_width": 4},  # three convolutions as stem
    "regnetx_002": {},  # batch norm with an activation in it
    "mobilenetv3_small_050": {},
    "convnext_tiny": {"depths": [1, 1, 2, 1], "dims": [8, 16, 24, 32]},
    "vit_tiny_patch16_224": {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 4, "num_heads": 2},
    "vit_small_patch14_dinov2": {"img_size": 28, "embed_dim": 32, "depth": 2, "num_heads": 2},
    "vit_small_patch16_dinov3": {"embed_dim": 32, "depth": 2, "num_heads": 2},
    "swin_tiny_patch4_window7_224": {"embed_dim": 12, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]},
}
CONVNEXT, VIT, RESNET = "convnext_tiny", "vit_tiny_patch16_224", "resnet26d"
STAGES = ["res2", "res3", "res4", "res5"]


def keys_of(name: str, builder: str = "build_timm_backbone", **options: object) -> tuple[object, ...]:
    """The config of a network of NETWORKS."""
    pairs = [item for pair in NETWORKS[name].items() for item in pair]
    keys = ("MODEL.BACKBONE.NAME", builder, "MODEL.TIMM.NAME", name, "MODEL.TIMM.OPTIONS", pairs)
    return (*keys, *(item for key, value in options.items() for item in (f"MODEL.TIMM.{key}", value)))


def stated(name: str) -> dict[str, object]:
    """What --config-file would say of a checkpoint of timm's."""
    return {"MODEL.TIMM.NAME": name, "MODEL.TIMM.OPTIONS": keys_of(name)[-1]}


def random_network(name: str) -> torch.nn.Module:
    """timm's, with a classifier, in evaluation mode; unlike at the start, no parameter is about 0 or 1."""
    sizes = {"dynamic_img_size": True} if "vit" in name or "swin" in name else {}
    network = timm.create_model(name, num_classes=3, **NETWORKS[name], **sizes)
    generator = torch.Generator().manual_seed(0)
    for key, parameter in network.named_parameters():
        low = 0.5 if "norm" in key or "bn" in key else -0.1
        parameter.data.uniform_(low, low + (0.2 if low < 0 else 1), generator=generator)
    return network.eval()


def images(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= 1e-4 * other.abs().max())


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_the_maps_of_converted_weights_are_timms(name):
    network, side = random_network(name), 112 if "14" in name else 128
    weights = convert(network.state_dict(), stated=stated(name))
    assert weights.source == "timm" and weights.flags["MODEL.TIMM.FINAL_NORM"] is ("vit" in name or "swin" in name)
    backbone = weights.description.build(flags_to_config(weights.flags)).eval()
    backbone.load_state_dict(weights.tensors, strict=True)
    x, options = images(2, 3, side, side // 2), {"output_fmt": "NCHW", "intermediates_only": True}
    last = network.forward_intermediates(x, norm=weights.flags["MODEL.TIMM.FINAL_NORM"], **options)[-1]
    ((key, found),) = backbone(x).items()
    assert is_close(found, last) and found.shape[2] == side // backbone.output_shape()[key].stride

    strides = {info["reduction"]: n for n, info in enumerate(network.feature_info)}
    names = ["res1", *STAGES][-len(strides) :] if len(strides) > 1 else []
    every = TimmBackbone(name, keys_of(name)[-1], out_features=names).eval()
    keys = every.load_state_dict(weights.tensors, strict=False)
    assert not keys.missing_keys  # the final norm is not asked for
    expected = network.forward_intermediates(x, indices=sorted(strides.values()), **options)
    for (key, found), one in zip(every(x).items(), expected, strict=True):
        shape = every.output_shape()[key]
        assert is_close(found, one) and (shape.channels, side // shape.stride) == found.shape[1:3]


@pytest.mark.parametrize("name", [RESNET, CONVNEXT, VIT, "vit_small_patch14_dinov2", "swin_tiny_patch4_window7_224"])
@torch.no_grad()
def test_images_of_any_size_are_padded_with_zeros_where_the_network_does_not_round_up(name):
    backbone, x = TimmBackbone(name, keys_of(name)[-1]).eval(), images(1, 3, 75, 120)
    ((key, found),) = backbone(x).items()
    stride = backbone.size_divisibility
    assert stride == backbone.output_shape()[key].stride
    assert found.shape[2:] == (-(-75 // stride), -(-120 // stride))
    if name != RESNET:  # whose convolutions pad
        assert is_close(found, backbone(F.pad(x, (0, -120 % stride, 0, -75 % stride)))[key])


@pytest.mark.parametrize(("name", "norm"), [(VIT, False), (VIT, True), (CONVNEXT, False), ("regnetx_002", False)])
@torch.no_grad()
def test_export_then_conversion_is_the_identity_and_the_snippet_computes_the_features(
    name, norm, tmp_path, monkeypatch
):
    torch.manual_seed(0)
    cfg = tiny_config(*keys_of(name, FINAL_NORM=norm))
    backbone = build_backbone(cfg).eval()
    path, exported = tmp_path / "backbone.pth", tmp_path / "exported.pth"
    write_tensors(backbone.state_dict(), path)
    write_flags(path, flags_of(cfg, describe(backbone)), source="test")
    weights = load_backbone(path)
    write_tensors(library_tensors(weights, "timm"), exported)
    back = convert(torch.load(exported), stated=stated(name))
    assert_same(back.tensors, weights.tensors)
    assert back.flags == weights.flags
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    card = model_card(weights, exported, "timm")
    exported.with_suffix(".md").write_text(card)
    assert load_backbone(exported).flags == weights.flags  # which nobody names
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    exec(code, names)
    expected = next(iter(backbone(names["images"]).values())).mean((2, 3))
    assert is_close(names["features"], expected)
    refused("torchvision is not known to have", library_tensors, weights, "torchvision")


@pytest.mark.parametrize("method", ["MoCo", "KNNMoCo", "DenseCL", "SimCLR", "BYOL", "SwAV"])
@pytest.mark.parametrize("name", [VIT, RESNET])
def test_it_learns_by_every_method_in_groups_where_it_has_batch_norm(name, method):
    small = 0 if method == "DenseCL" else 2
    options = (*keys_of(name), "MODEL.META_ARCHITECTURE", method, "VIEWS.NUM_SMALL", small)
    options += ("MOCO.BN_GROUP", 2 if name == RESNET else 128, "MODEL.BACKBONE.FREEZE_AT", int(name == VIT))
    options += ("SWAV.PROTOTYPES", 12, "SWAV.QUEUE_SIZE", 16)
    model = tiny_model(*options).train()
    losses, _ = step(model, random_views(8, large=64, small=40, num_small=small))
    sum(losses.values()).backward()
    if "momentum_backbone" in dict(model.named_modules()) and method != "BYOL":
        assert model.shuffle_bn is (name == RESNET)
    for key, parameter in model.named_parameters():
        is_fixed = key.startswith(("momentum_", "backbone.timm.patch_embed."))
        assert parameter.requires_grad != is_fixed and (is_fixed or parameter.grad.isfinite().all()), key


def test_groups_of_a_batch_norm_with_activation_are_those_of_its_parts():
    torch.manual_seed(0)
    alone, grouped = (TimmBackbone("regnetx_002").train() for _ in range(2))
    grouped.load_state_dict(alone.state_dict())
    group_batch_norm([grouped], BNGroups(2, 2, 1, 2))
    assert grouped.state_dict().keys() == alone.state_dict().keys()
    x = images(4, 3, 64, 64)
    parts = torch.cat([alone(part)["res5"] for part in x.chunk(2)])
    assert is_close(grouped(x)["res5"], parts) and not is_close(alone(x)["res5"], parts)
    grouped.load_state_dict(alone.state_dict())
    assert is_close(grouped.eval()(x)["res5"], alone.eval()(x)["res5"])


@pytest.mark.parametrize("freeze_at", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("name", [VIT, CONVNEXT, RESNET])
def test_freeze_at_freezes_as_many_of_timms_stages_or_blocks_with_their_batch_norm(name, freeze_at):
    torch.manual_seed(0)
    backbone = build_backbone(tiny_config(*keys_of(name), "MODEL.BACKBONE.FREEZE_AT", freeze_at)).train()
    stages = {
        CONVNEXT: ["stem.", *(f"stages.{n}." for n in range(4))],
        VIT: ["patch_embed.", *(f"blocks.{n}." for n in range(4))],  # tokens and positions last
        RESNET: [("conv1.", "bn1."), *(f"layer{n}." for n in range(1, 5))],
    }[name]
    frozen = tuple(prefix for stage in stages[:freeze_at] for prefix in ([stage] if isinstance(stage, str) else stage))
    before = {key: value.clone() for key, value in backbone.timm.state_dict().items()}
    backbone(images(2, 3, 64, 64))
    for key, parameter in backbone.timm.named_parameters():
        is_last = name == VIT and freeze_at >= 5
        assert parameter.requires_grad != (key.startswith(frozen) or is_last), key
    for key, value in backbone.timm.state_dict().items():
        if key.endswith("running_mean"):
            assert torch.equal(value, before[key]) == key.startswith(frozen), key


@torch.no_grad()
def test_the_simple_pyramid_is_what_the_paper_describes():
    torch.manual_seed(0)
    pyramid = SimpleFeaturePyramid(build_backbone(tiny_config(*keys_of(VIT))), 16).eval()
    for parameter in pyramid.parameters():
        parameter.uniform_(-0.5, 0.5)
    x, w = images(2, 3, 48, 32), pyramid.state_dict()
    found, below = pyramid(x), pyramid.bottom_up(x)["res3"]

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


DETECTOR = (
    "MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "MODEL.ROI_HEADS.NAME", "StandardROIHeads", "MODEL.FPN.NORM", "GN",
    "MODEL.ROI_BOX_HEAD.NAME", "FastRCNNConvFCHead", "MODEL.ROI_BOX_HEAD.NUM_FC", 1, "MODEL.ROI_BOX_HEAD.FC_DIM", 8,
    "MODEL.FPN.OUT_CHANNELS", 32, "MODEL.FPN.IN_FEATURES", STAGES, "MODEL.RPN.IN_FEATURES", ["p3", "p4"],
    "MODEL.ROI_HEADS.IN_FEATURES", ["p3"],
)  # fmt: skip
PYRAMIDS = {VIT: "build_timm_simple_pyramid_backbone", RESNET: "build_timm_fpn_backbone"}


@pytest.mark.parametrize("name", PYRAMIDS)
def test_a_detector_holds_every_tensor_of_a_converted_run_and_learns(name, tmp_path):
    model, cfg = tiny_model(*keys_of(name)), tiny_config(*keys_of(name))
    run_of_it = {"model": model.state_dict(), "flags": flags_of(cfg, describe(model))}
    weights = write_converted(run_of_it, tmp_path / "backbone.pth")
    detector = load_into(tiny_config(*keys_of(name, PYRAMIDS[name]), *DETECTOR), weights)
    assert_same(detector.backbone.bottom_up.state_dict(), model.backbone.state_dict())
    image = torch.randint(0, 256, (3, 60, 76), dtype=torch.uint8)
    truth = Instances((60, 76), gt_boxes=Boxes(torch.tensor([[8.0, 8, 40, 50]])), gt_classes=torch.tensor([3]))
    with EventStorage():
        losses = detector.train()([{"image": image, "instances": truth}] * 2)
    sum(losses.values()).backward()
    assert all(p.grad.isfinite().all() for p in detector.backbone.bottom_up.parameters())
    with torch.no_grad():
        assert "instances" in detector.eval()([{"image": image, "height": 60, "width": 76}])[0]
    learnt = {key: value for key, value in detector.backbone.bottom_up.state_dict().items()}
    assert_same(convert({**run_of_it, "model": detector.state_dict()}).tensors, learnt)
    del run_of_it["model"][next(key for key in run_of_it["model"] if key.startswith("backbone."))]
    refused("no value for", convert, run_of_it)


@pytest.mark.parametrize("name", PYRAMIDS)
def test_objects_teach_a_detector_its_pyramid_and_box_head(name, tmp_path):
    detector = (*keys_of(name, PYRAMIDS[name]), *DETECTOR)
    views = ("VIEWS.LARGE_SIZE", 64, "VIEWS.SMALL_SIZE", 32, "VIEWS.NUM_SMALL", 2, "OBJECTS.NUM_BOXES", 3)
    objects = (*detector, *views, "MODEL.META_ARCHITECTURE", "ObjectMoCo")
    model = tiny_model(*objects).train()
    losses, _ = step(model, random_views(2, large=64, small=32, num_small=2) | random_objects(2))
    sum(losses.values()).backward()
    assert model.roi_heads.box_head.fc1.weight.grad.any()
    content = run_checkpoint(*objects)
    learned = content["model"]
    loaded = load_into(tiny_config(*detector), write_converted(content, tmp_path / "objects.pth")).state_dict()
    names = {key for key in learned if key.startswith(("backbone.", "roi_heads.box_head."))}
    assert names <= loaded.keys() and all(torch.equal(loaded[key], learned[key]) for key in names)


@pytest.mark.parametrize(("name", "feature"), [(VIT, "res3"), (CONVNEXT, "res4")])
def test_heads_for_pixels_take_a_map_by_its_name(name, feature):
    head = ("MODEL.SEM_SEG_HEAD.NAME", "RevisitFCNHead", "MODEL.SEM_SEG_HEAD.IN_FEATURES", [feature])
    head += ("MODEL.SEM_SEG_HEAD.NUM_CLASSES", 3, "MODEL.SEM_SEG_HEAD.CONVS_DIM", 8, "MODEL.SEM_SEG_HEAD.NORM", "BN")
    keys = keys_of(name, OUT_FEATURES=[feature])
    cfg = tiny_config(*keys, "MODEL.META_ARCHITECTURE", "SemanticSegmentor", *head)
    model = build_model(cfg)
    image, labels = torch.randint(0, 256, (3, 45, 70)), torch.randint(0, 3, (45, 70))
    losses = model.train()([{"image": image, "sem_seg": labels}] * 2)
    assert losses["loss_sem_seg"].isfinite()
    with torch.no_grad():
        (found,) = model.eval()([{"image": image, "height": 45, "width": 70}])
    assert found["sem_seg"].shape == (3, 45, 70)
    assert pixelwise(cfg, Facts(images=2, processes=1), model)["backbone_dilations"] == {}  # no stage has such a name


@pytest.mark.parametrize("name", PYRAMIDS)
@torch.no_grad()
def test_frozen_features_are_those_of_the_converted_run(name, tmp_path):
    model, cfg = tiny_model(*keys_of(name)), tiny_config(*keys_of(name))
    run_of_it = {"model": model.state_dict(), "flags": flags_of(cfg, describe(model))}
    cfg.MODEL.WEIGHTS = str(write_converted(run_of_it, tmp_path / "backbone.pth"))
    frozen, x = Network.of_config(cfg), torch.randint(0, 256, (2, 3, 40, 32), dtype=torch.uint8)
    expected = [output["feature"] for output in model.eval()([{"image": image} for image in x])]
    assert torch.allclose(F.normalize(frozen.pooled(x), dim=1), torch.stack(expected), atol=1e-5)


@pytest.mark.parametrize(("family", "name"), [("vit", VIT), ("convnext", CONVNEXT)])
def test_two_processes_pretrain_and_finetune_by_the_recipes(family, name, toy_root, tmp_path):
    train = f"python tools/train_net.py --num-gpus 2 --config-file configs/toy/{family}"
    options = {CONVNEXT: "['depths',[1,1,1,1],'dims',[8,8,8,8]]"}
    options[VIT] = "['img_size',64,'patch_size',8,'embed_dim',16,'depth',1,'num_heads',2]"
    tiny = f'MODEL.TIMM.OPTIONS "{options[name]}" SOLVER.IMS_PER_BATCH 4 SOLVER.WARMUP_ITERS 0'
    alone = "DATASETS.TEST () KNN_EVAL.BANK '' KNN_EVAL.LINEAR False TEST.EVAL_EPOCHS 0 DATALOADER.NUM_WORKERS 0 "
    alone += "MOCO.QUEUE_SIZE 40 NEIGHBORS.WARMUP_EPOCHS 0"
    run(f"{train}_pretrain.yaml SOLVER.MAX_ITER 2 OUTPUT_DIR {tmp_path}/a {tiny} {alone}", toy_root)
    text = run(f"python tools/convert_to_d2.py {tmp_path}/a/model_final.pth {tmp_path}/backbone.pth", toy_root)
    assert f"revisit layout, {name} of timm's" in text
    finetune = f"{train}_detection.yaml MODEL.WEIGHTS {tmp_path}/backbone.pth SOLVER.MAX_ITER 2 SOLVER.STEPS ()"
    text = run(f"{finetune} DATASETS.TEST () OUTPUT_DIR {tmp_path}/b {tiny}", toy_root)
    assert "2 gloo processes" in text and Path(tmp_path, "b", "model_final.pth").is_file()


@pytest.mark.parametrize("name", ["hiera_tiny_224", "levit_128s", "inception_v3", "mixer_s32_224", "not_a_network"])
def test_networks_without_maps_of_fixed_strides_over_any_size_are_refused_by_name(name):
    refused(f"MODEL.TIMM.NAME '{name}'", TimmBackbone, name)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (("MODEL.TIMM.NAME", "convnext_tiny.in12k"), "MODEL.TIMM.NAME"),
        (("MODEL.TIMM.OPTIONS", ["no_such_option", 3]), "no_such_option"),
        (("MODEL.TIMM.OPTIONS", ["depths"]), "MODEL.TIMM.OPTIONS"),
        (("MODEL.TIMM.OUT_FEATURES", ["res9"]), "res9"),
        (keys_of("vit_small_patch14_dinov2", "build_timm_simple_pyramid_backbone"), "stride 14"),
    ],
)
def test_what_no_network_of_timms_is_gets_refused_by_name(options, key):
    with pytest.raises(UserError, match=key):
        cfg = tiny_config(*keys_of(CONVNEXT), *options)
        check_values(cfg)
        build_backbone(cfg)


LOADING = ["checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "features_only"]
LOADING += ["pretrained_strict", "pretrained_filter_fn", "pretrained_custom_load", "feature_cfg", "scriptable"]


@pytest.mark.parametrize("option", LOADING)
def test_an_option_that_loads_a_file_or_a_class_reaches_no_network(option, monkeypatch, tmp_path):
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("timm was asked"))
    refused(f"{option} is no argument of an architecture", TimmBackbone, CONVNEXT, [option, "evil.pth"])
    config = {"architecture": CONVNEXT, "model_args": {option: "evil.pth"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = flags_on_hub(tmp_path / "model.safetensors")
    refused(f"{option} is no argument", convert, {"stem.0.weight": torch.zeros(1)}, stated=flags)


@pytest.mark.parametrize("name", ["hf-hub:timm/resnet18", "local-dir:/tmp/network", "timm/resnet18", "hf_hub:a/b@main"])
def test_the_address_of_a_repository_is_no_name_of_a_network(name, monkeypatch):
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("timm was asked"))
    refused("timm has no such network", TimmBackbone, name)


def test_weights_of_other_projects_are_found_by_their_prefix_and_strange_keys_refused():
    tensors = {key: value for key, value in random_network(VIT).state_dict().items() if not key.startswith("head.")}
    found = convert(moco(tensors), stated=stated(VIT))
    assert found.source == "moco"
    assert_same(found.tensors, convert(tensors, stated=stated(VIT)).tensors)
    refused("--timm NAME", convert, tensors)
    with pytest.raises(UserError, match=r"cannot place blocks\.9\.attn"):
        convert(tensors | {"blocks.9.attn.qkv.weight": torch.ones(2)}, stated=stated(VIT))
    refused("timm.cls_token is", convert, tensors, stated={**stated(VIT), "MODEL.TIMM.OPTIONS": ["patch_size", 8]})


def test_heads_that_no_tensor_shows_are_those_of_the_name_or_of_its_options_and_are_said():
    flags = flags_of_name("vit_tiny_patch16_224,img_size=32,embed_dim=64,depth=4,num_heads=4,patch_size=8")
    assert flags["MODEL.TIMM.OPTIONS"][-4:] == ["num_heads", 4, "patch_size", 8]
    tensors = random_network(VIT).state_dict()  # of 2 heads
    assert convert(tensors, stated=flags).title.endswith(", 4 heads")
    assert convert(tensors, stated=stated(VIT)).title.endswith(", 2 heads")
    for name, heads in (("vit_huge_patch14_224", 16), ("convnext_tiny", None)):
        keys = {"MODEL.TIMM.NAME": name, "MODEL.TIMM.OPTIONS": [], "MODEL.TIMM.FINAL_NORM": True}
        assert TimmDescription().title(keys) == f"{name} of timm's" + (f", {heads} heads" if heads else "")
    for options in ("num_heads", "num_heads=two", "**{}", "4, num_heads=4", "num_heads=4)"):
        refused("expected each as NAME=VALUE", flags_of_name, f"vit_tiny_patch16_224,{options}")


def test_a_name_with_its_tag_says_the_pixels_and_the_hub_says_the_name(tmp_path):
    assert flags_of_name("vit_small_patch16_224") == {"MODEL.TIMM.NAME": "vit_small_patch16_224"}
    dino, augreg = (flags_of_name(f"vit_small_patch16_224.{tag}") for tag in ("dino", "augreg_in21k"))
    assert dino["MODEL.PIXEL_MEAN"] == pytest.approx([123.675, 116.28, 103.53])
    assert augreg["MODEL.PIXEL_STD"] == pytest.approx([127.5] * 3)
    for name in ("vit_giantissimo", "vit_small_patch16_224.no_such_tag"):
        refused(f"--timm {name}", flags_of_name, name)
    assert dino["MODEL.PIXEL_STD"] == [58.395, 57.12, 57.375]  # as the recipes have it, not 57.120000000000005
    refused("did you mean convnext_atto", flags_of_name, "convnext_attto")
    refused("did you mean convnext_atto", TimmBackbone, "convnext_attto")
    file, near = tmp_path / "model.safetensors", tmp_path / "config.json"
    config = {"architecture": "vit_small_patch16_224", "pretrained_cfg": {"tag": "dino"}}
    assert flags_on_hub(file) == {}
    near.write_text(json.dumps(config))
    assert flags_on_hub(file) == dino
    near.write_text(json.dumps(config | {"model_args": {"num_heads": 12, "img_size": [224, 240]}}))
    assert flags_on_hub(file) == {**dino, "MODEL.TIMM.OPTIONS": ["num_heads", 12, "img_size", [224, 240]]}
    own = {"mean": [0.2, 0.4, 0.6], "std": [0.1, 0.1, 1]}
    pixels = {"MODEL.PIXEL_MEAN": [51.0, 102.0, 153.0], "MODEL.PIXEL_STD": [25.5, 25.5, 255]}
    for content in ({"pretrained_cfg": own | {"tag": "mine"}}, own):  # of today, and before timm 0.9
        near.write_text(json.dumps({"architecture": "vit_small_patch16_224", **content}))
        assert stated_flags(file, {}).items() >= pixels.items()
        assert stated_flags(file, {}, "vit_small_patch16_224").items() >= pixels.items()
        assert stated_flags(file, {}, "vit_small_patch16_224.dino") == dino
        assert stated_flags(file, {}, "vit_tiny_patch16_224") == {"MODEL.TIMM.NAME": "vit_tiny_patch16_224"}
    for mean in ([123.7, 116.3, 103.5], [0.5], "half"):
        near.write_text(json.dumps({"architecture": "resnet50", "mean": mean, "std": mean}))
        refused("expected three numbers from 0 to 1", flags_on_hub, file)


# The three common sets of statistics, ImageNet's, 0.5 and CLIP's, times 255.
HALF, CLIP = [127.5] * 3, [122.7709383, 116.7460125, 104.09373615]
DEFAULTS = {
    "convnext_atto": [123.675, 116.28, 103.53],
    "vit_tiny_patch16_224": HALF,
    "vit_base_patch16_clip_224": CLIP,
    "mobilenetv2_100": [123.675, 116.28, 103.53],
    "resnetv2_50x1_bit": HALF,
    "mixnet_s,drop_path_rate=0.1": [123.675, 116.28, 103.53],
    "vit_base_patch16_224,img_size=384": HALF,
    "vit_small_patch16_224,num_heads=12": [],  # MoCo-v3's, which timm has no weights of
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_without_a_tag_the_pixels_are_those_of_timms_default_weights(name):
    pixels, _ = default_pixels(flags_of_name(name))
    assert pixels.get("MODEL.PIXEL_MEAN", []) == pytest.approx(DEFAULTS[name], abs=1e-6)


@pytest.mark.fuzz
def test_pixels_of_200_names_are_timms():
    for name in random.Random(0).sample(timm.list_models(pretrained=True), 200):
        weights = timm.models.get_pretrained_cfg(name)
        network = name.partition(".")[0]
        default = timm.models.get_pretrained_cfg(network)
        for flags, expected in ((flags_of_name(name), weights), (default_pixels(flags_of_name(network))[0], default)):
            assert flags["MODEL.PIXEL_MEAN"] == pytest.approx([255 * value for value in expected.mean], abs=1e-6), name
            assert flags["MODEL.PIXEL_STD"] == pytest.approx([255 * value for value in expected.std], abs=1e-6), name


def test_timms_default_counts_for_timms_files_alone_and_the_conversion_says_whose_pixels():
    network = timm.create_model("vit_tiny_patch16_224", num_classes=0).state_dict()
    stated_name = flags_of_name("vit_tiny_patch16_224")
    own, of_moco = convert(network, stated=stated_name), convert(moco(network), stated=stated_name)
    assert own.flags["MODEL.PIXEL_STD"] == HALF and of_moco.flags["MODEL.PIXEL_STD"] == [58.395, 57.12, 57.375]
    assert "vit_tiny_patch16_224.augreg_in21k_ft_in1k, timm's default" in own.notes[0]
    assert "padding" in own.notes[1]
    assert any("ImageNet's" in line for line in of_moco.notes)
    options = flags_of_name("vit_tiny_patch16_224,img_size=224,init_values=None")
    assert convert(network, stated=options).flags["MODEL.PIXEL_STD"] == [58.395, 57.12, 57.375]


@pytest.mark.parametrize(
    "name", ["resnetaa50", "resnetblur18", "resnet26t", "seresnet18", "ecaresnetlight", "resnet18"]
)
@torch.no_grad()
def test_a_resnet_with_a_config_json_is_the_network_that_it_names(name, tmp_path):
    torch.manual_seed(0)
    network, x = timm.create_model(name, num_classes=0).eval(), images(1, 3, 64, 64)
    config = {"architecture": name, "pretrained_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = network.state_dict()
    weights = convert(tensors, stated=stated_flags(tmp_path / "model.safetensors", tensors))
    assert weights.flags["MODEL.PIXEL_MEAN"] == weights.flags["MODEL.PIXEL_STD"] == HALF
    assert weights.title == ("ResNet-18" if name == "resnet18" else f"{name} of timm's")
    backbone = weights.description.build(flags_to_config(weights.flags)).eval()
    backbone.load_state_dict(weights.tensors)
    assert is_close(next(iter(backbone(x).values())), network.forward_features(x))


def test_the_name_of_a_file_of_other_layers_than_its_tensors_show_is_not_passed_over(tmp_path):
    tensors = {"layer1.0.conv1.weight": torch.zeros(1)}
    refused("--timm resnetblur50 converts it", stated_flags, tmp_path / "resnetblur50-84f4748f.pth", tensors)
    assert stated_flags(tmp_path / "resnet50-84f4748f.pth", tensors) == {}
    named = stated_flags(tmp_path / "resnetblur50-84f4748f.pth", tensors, "resnetblur50")
    assert named == {"MODEL.TIMM.NAME": "resnetblur50"}


@pytest.mark.parametrize("name", ["resnet50d", "resnet18d", "seresnet50", "resnet26t"])
def test_resnets_with_more_tensors_are_refused_with_the_name_to_give(name, tmp_path):
    with torch.device("meta"):
        tensors = timm.create_model(name).state_dict()
    distributed = {f"module.{key}": value for key, value in tensors.items()}
    for names in (tensors, distributed):
        refused(f"--timm {name.replace('26t', '26d')} converts it", stated_flags, tmp_path / "a.pth", names)
    assert stated_flags(tmp_path / "a.pth", tensors, name) == {"MODEL.TIMM.NAME": name}
    assert stated_flags(tmp_path / "a.pth", {f"backbone.timm.{key}": value for key, value in tensors.items()}) == {}


def test_weights_of_a_network_of_timms_under_a_resnets_config_name_the_keys_that_they_need():
    flags = {"MODEL.TIMM.NAME": "convnext_atto", "MODEL.TIMM.OPTIONS": [], "MODEL.TIMM.FINAL_NORM": True}
    message = "atto.pth is of a network of timm's, and the config builds a ResNet: add "
    message += "MODEL.BACKBONE.NAME build_timm_fpn_backbone MODEL.TIMM.NAME convnext_atto MODEL.TIMM.FINAL_NORM True"
    cfg = tiny_config("MODEL.BACKBONE.NAME", "build_resnet_fpn_backbone")
    refused(message, check_flags, flags, cfg, ResNetDescription(), "atto.pth")
    plain = tiny_config("MODEL.META_ARCHITECTURE", "GeneralizedRCNN")
    refused("such as own_images/detection_fpn.yaml", check_flags, flags, plain, ResNetDescription(), "atto.pth")
    flags["MODEL.PIXEL_MEAN"] = [127.5] * 3
    pixels = r".* MODEL.PIXEL_MEAN '\[127.5, 127.5, 127.5\]'"
    refused(message + pixels, check_flags, flags, cfg, ResNetDescription(), "atto.pth")
    frozen = "stay frozen add MODEL.BACKBONE.NAME build_timm_backbone MODEL.TIMM.NAME convnext_atto"
    refused(frozen + pixels, check_flags, flags, plain, ResNetDescription(), "atto.pth")


def test_a_vit_under_an_fpn_is_pointed_to_the_simple_pyramid():
    with pytest.raises(UserError, match=r"no map \['res2'.*build_timm_simple_pyramid_backbone"):
        TimmBackbone(VIT, keys_of(VIT)[-1], out_features=["res2", "res3"])


@torch.no_grad()
def test_images_for_which_a_network_has_no_positions_are_refused_in_one_line():
    backbone = TimmBackbone("mvitv2_tiny").eval()
    assert backbone(images(1, 3, 224, 192))["res5"].shape[2:] == (7, 6)
    refused("mvitv2_tiny of timm's has no positions for images of 256x224 px", backbone, images(1, 3, 224, 256))


def _layers(kind, kernel, stride):
    """A depthwise convolution of torch's or of timm's and its copy in double precision, both fast, and torch's own."""
    plain = kind(6, 6, kernel, stride=stride, padding=(kernel[0] // 2, kernel[1] // 2), groups=6)
    fast = torch.nn.Sequential(copy.deepcopy(plain), torch.nn.Conv2d(6, 6, 1))
    fast_depthwise(fast)
    return fast, plain.double()


@pytest.mark.parametrize("kind", [torch.nn.Conv2d, timm.layers.Conv2dSame])
@pytest.mark.parametrize("kernel", [(2, 2), (3, 3), (4, 4), (5, 5), (3, 7)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(9, 11), (12, 8), (1, 1)])
def test_fast_depthwise_convolutions_and_their_copies_have_torchs_gradients(kind, kernel, stride, size):
    fast, plain = _layers(kind, kernel, stride)
    fast = copy.deepcopy(fast).double()
    fast[0].weight.data.mul_(2)
    plain.weight.data.mul_(2)
    x = images(2, 6, *size).double()
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    maps = [layer(image) for layer, image in zip((fast[0], plain), inputs, strict=True)]
    for each in maps:
        each.square().sum().backward()
    ours, theirs = ([x, *layer.parameters()] for x, layer in zip(inputs, (fast[0], plain), strict=True))
    assert torch.equal(*maps)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-12)


@pytest.mark.parametrize("stride", [1, 2])
def test_fast_depthwise_convolutions_stay_in_bfloat16_under_a_cpus_autocast(stride):
    fast, plain = _layers(torch.nn.Conv2d, (5, 5), stride)
    x = images(2, 6, 9, 9).bfloat16().to(memory_format=torch.channels_last).requires_grad_()
    with torch.autocast("cpu"):
        maps = fast[0](x)
    wide = x.detach().double().requires_grad_()
    expected = plain(wide)
    grad = torch.randn_like(maps)
    maps.backward(grad)
    expected.backward(grad.double())
    assert (maps.dtype, x.grad.dtype, fast[0].weight.grad.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    ours, theirs = (maps, x.grad, fast[0].weight.grad), (expected, wide.grad, plain.weight.grad)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.double() - other).abs().max() < 0.02 * other.abs().max()
    assert fast.bfloat16()[0](images(2, 6, 9, 9).bfloat16()).dtype == torch.bfloat16


def test_a_network_without_a_final_norm_leaves_its_classifier_by_timms_older_rule_too(monkeypatch):
    prune = timm.models.EfficientNet.prune_intermediate_layers
    asked = []

    def recorded(network: torch.nn.Module, *args: object, prune_norm: bool) -> list[int]:
        asked.append(prune_norm)
        return prune(network, *args, prune_norm=prune_norm)

    monkeypatch.setattr(timm.models.EfficientNet, "prune_intermediate_layers", recorded)
    build("efficientnet_lite0", {}, [4], final_norm=True)
    assert asked == [True]
