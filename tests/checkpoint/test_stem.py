"""Weights of photographs for images of other channels: the map of the first convolution, and who refuses what."""

import logging
from pathlib import Path

import pytest
import torch
import torchvision
from checkpoints import run_checkpoint, write_converted
from tiny import tiny_config
from torch.nn import functional as F

from revisit.checkpoint.backbone_file import load_backbone, write_backbone
from revisit.checkpoint.checkpointer import RevisitCheckpointer, WholeModelCheckpointer
from revisit.checkpoint.convert import BackboneWeights, as_rgb, convert, for_channels
from revisit.checkpoint.flags import IMAGENET, check_flags, flags_of, flags_to_config
from revisit.checkpoint.stem import stem_for, stem_words
from revisit.engine.setup import make_config
from revisit.errors import UserError
from revisit.keys import with_values
from revisit.modeling.backbone.description import describe, family_of
from revisit.network.network import Network, load_network

from detectron2.config import CfgNode
from detectron2.modeling import build_model

RGB = torch.randn(8, 3, 5, 5, dtype=torch.float64)
THIRTEEN = ("aerosol", "blue", "green", "red", "edge1", "edge2", "edge3", "nir", "nir2", "vapour", "cirrus", "s1", "s2")


def convolved(images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.conv2d(images, weight, padding=2)


def with_others_at_their_mean(photographs: torch.Tensor, words: list[str]) -> torch.Tensor:
    """Normalised images (N, n, H, W): colours where the words say so, else 0, which the mean is."""
    nothing = torch.zeros_like(photographs[:, 0])
    return torch.stack([photographs[:, "rgb".index(word)] if word in "rgb" else nothing for word in words], 1)


@pytest.mark.parametrize(
    "words",
    ["r g b", "b g r", "r g b mean", "r g b mean mean", "zero r mean g b", " ".join(stem_words(THIRTEEN))],
)
def test_channels_at_their_mean_leave_the_very_maps_of_rgb(words):
    words = words.split()
    photographs = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    found = convolved(with_others_at_their_mean(photographs, words), stem_for(RGB, words))
    torch.testing.assert_close(found, convolved(photographs, RGB), rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 5, 13])
def test_a_grey_photograph_in_all_channels_has_the_maps_that_it_has_as_rgb(count):
    grey = torch.randn(2, 1, 12, 12, dtype=torch.float64)
    found = convolved(grey.expand(-1, count, -1, -1), stem_for(RGB, ["mean"] * count))
    torch.testing.assert_close(found, convolved(grey.expand(-1, 3, -1, -1), RGB), rtol=0, atol=1e-12)


def test_channels_that_share_a_word_share_its_weights():
    two = stem_for(RGB, ["r", "r", "b", "mean", "mean", "zero"])
    torch.testing.assert_close(two[:, 0] + two[:, 1], RGB[:, 0])
    torch.testing.assert_close(two[:, 3] + two[:, 4], RGB.mean(1))
    assert torch.equal(two[:, 2], RGB[:, 2]) and not two[:, 5].any()


RGBN = ("red", "green", "blue", "nir")
MEANS, STDS = [123.675, 116.28, 103.53, 90.0, 50.0], [58.395, 57.12, 57.375, 40.0, 30.0]


def channels(*names: str, **options: object) -> CfgNode:
    """A config whose images have these channels; without names photographs."""
    count = len(names) or 3
    values = {"INPUT.CHANNELS": list(names) or None, "INPUT.RANGE": [[0.0, 255.0]] * len(names) or None}
    statistics = {"MODEL.PIXEL_MEAN": MEANS[:count], "MODEL.PIXEL_STD": STDS[:count]}
    return with_values(tiny_config(), {**values, **statistics, **options})


@pytest.fixture
def photographs(tmp_path) -> Path:
    """Converted weights of a tiny ResNet for RGB."""
    return write_converted(run_checkpoint(), tmp_path / "backbone.pth")


def loaded(cfg: CfgNode, weights: Path, kind: type = RevisitCheckpointer) -> torch.nn.Module:
    model = build_model(cfg).eval()
    kind(model, cfg).load(str(weights))
    return model


def test_a_run_on_further_channels_begins_with_the_very_maps_of_its_weights_of_photographs(photographs, caplog):
    caplog.set_level(logging.INFO)
    rgb = load_network(str(photographs)).double()
    model = loaded(channels(*RGBN), photographs).double()
    assert "red from r, green from g, blue from b, nir from mean" in caplog.text
    images = torch.rand(2, 3, 64, 64, dtype=torch.float64) * 255
    with_nir = torch.cat([images, torch.full((2, 1, 64, 64), MEANS[3], dtype=torch.float64)], 1)
    for encoder in (model.backbone, model.momentum_backbone):
        maps = encoder(model.normalized(with_nir))["res5"]
        torch.testing.assert_close(maps, rgb.last_map(images), rtol=1e-6, atol=1e-6)  # mean and deviation are float32
        moved = encoder(model.normalized(with_nir + torch.tensor([0, 0, 0, 30.0]).view(-1, 1, 1)))["res5"]
        assert (moved - maps).abs().max() > 1e-3


def test_the_stated_map_counts_and_has_a_word_for_each_channel(photographs):
    model = loaded(channels(*RGBN, **{"MODEL.STEM_FROM": "b mean zero r"}), photographs)
    theirs = load_backbone(photographs).tensors["stem.conv1.weight"]
    ours = model.backbone.stem.conv1.weight
    assert torch.equal(ours[:, 0], theirs[:, 2]) and torch.equal(ours[:, 3], theirs[:, 0]) and not ours[:, 2].any()
    torch.testing.assert_close(ours[:, 1], theirs.mean(1))
    with pytest.raises(UserError, match="MODEL.STEM_FROM r g b has 3 words: expected one for each of INPUT.CHANNELS"):
        loaded(channels(*RGBN, **{"MODEL.STEM_FROM": "r g b"}), photographs)


def with_flags(weights: Path, **flags: object) -> Path:
    read = load_backbone(weights)
    path = weights.with_name("other.pth")
    write_backbone(read._replace(flags={**read.flags, **flags}), path)
    return path


def test_weights_for_bgr_over_no_deviation_become_those_for_rgb_over_imagenets(photographs):
    bgr = {"INPUT.FORMAT": "BGR", "MODEL.PIXEL_STD": [1.0, 1.0, 1.0]}
    theirs = load_backbone(photographs).tensors["stem.conv1.weight"]
    ours = loaded(channels(*RGBN), with_flags(photographs, **bgr)).backbone.stem.conv1.weight
    scale = torch.tensor(IMAGENET["MODEL.PIXEL_STD"])
    torch.testing.assert_close(ours[:, :3], theirs.flip(1) * scale.view(3, 1, 1))
    raw = channels(*RGBN, **{"MODEL.PIXEL_STD": [1.0] * 4})
    assert torch.equal(loaded(raw, with_flags(photographs, **bgr)).backbone.stem.conv1.weight[:, :3], theirs.flip(1))


def test_a_network_that_predicts_does_not_start_from_photographs(photographs):
    with pytest.raises(UserError, match="sees photographs, and the images have channels: expected weights that were"):
        loaded(channels(*RGBN), photographs, WholeModelCheckpointer)


def test_weights_that_see_other_channels_are_refused_by_name(photographs):
    flags = {**load_backbone(photographs).flags, "MODEL.PIXEL_MEAN": MEANS[:4], "MODEL.PIXEL_STD": STDS[:4]}
    flags |= {"INPUT.CHANNELS": list(RGBN)}
    family = family_of(flags)
    check_flags(flags, channels(*RGBN), family, "four.pth")
    with pytest.raises(UserError, match="four.pth sees the channels red green blue nir, and the images are photograph"):
        check_flags(flags, channels(), family, "four.pth")
    with pytest.raises(UserError, match='and the images have red green nir blue: set INPUT.CHANNELS "red green blue n'):
        check_flags(flags, channels("red", "green", "nir", "blue"), family, "four.pth")
    with pytest.raises(UserError, match="MODEL.PIXEL_MEAN is .* here and .* there"):
        check_flags(flags, channels(*RGBN, **{"MODEL.PIXEL_MEAN": MEANS[1:]}), family, "four.pth")


TIMM = {
    "resnet18": [], "convnext_atto": [], "efficientnet_lite0": [], "mobilenetv3_small_050": [], "regnetx_002": [],
    "vit_tiny_patch16_224": ["depth", 2], "swin_tiny_patch4_window7_224": ["embed_dim", 24], "repvgg_a0": [],
    "mobileone_s0": [], "pvt_v2_b0": [],
}  # fmt: skip


@pytest.mark.parametrize("name", TIMM)
def test_a_network_of_timms_for_four_channels_has_the_very_maps_of_its_weights_of_photographs(name):
    keys = {"MODEL.TIMM.NAME": name, "MODEL.TIMM.OPTIONS": TIMM[name], "MODEL.TIMM.FINAL_NORM": False}
    flags = {**keys, **IMAGENET}
    family = family_of(flags)
    torch.manual_seed(0)
    rgb = family.build(flags_to_config(flags)).eval()
    weights = for_channels(BackboneWeights(rgb.state_dict(), flags, family, ""), channels(*RGBN))
    assert weights.flags["MODEL.PIXEL_MEAN"] == MEANS[:4]
    network = family.build(flags_to_config({**flags, "MODEL.PIXEL_MEAN": MEANS[:4]})).eval()
    network.load_state_dict(weights.tensors)
    images = torch.randn(1, 3, 224, 224, dtype=torch.float64)
    (theirs,) = rgb.double()(images).values()
    (ours,) = network.double()(F.pad(images, (0, 0, 0, 0, 0, 1))).values()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * theirs.abs().max().item())


RECIPES = ("detection", "faster_rcnn_fpn", "mask_rcnn_fpn", "retinanet_fpn", "segmentation_voc", "segmentation_nyud")
RECIPES += ("depth", "convnext_detection", "vit_detection")


@pytest.mark.parametrize("recipe", RECIPES)
@torch.no_grad()
def test_networks_of_all_tasks_see_one_four_or_thirteen_channels_and_start_from_their_like_for_rgb(recipe, tmp_path):
    cfg = make_config(f"configs/toy/{recipe}.yaml", ["MODEL.DEVICE", "cpu", "MODEL.WEIGHTS", "", "SEED", "1"])
    cfg = with_values(cfg, {"INPUT.FORMAT": "RGB"})
    rgb = build_model(cfg)
    path = tmp_path / "rgb.pth"
    torch.save({"model": rgb.state_dict(), "flags": flags_of(cfg, describe(rgb))}, path)
    for names in (("thermal",), RGBN, THIRTEEN):
        statistics = {"MODEL.PIXEL_MEAN": [100.0] * len(names), "MODEL.PIXEL_STD": [50.0] * len(names)}
        model = loaded(with_values(cfg, {"INPUT.CHANNELS": list(names), **statistics}), path)
        stems = [(rgb.get_parameter(key), value) for key, value in model.named_parameters() if value.dim() == 4]
        (theirs, ours), *others = [pair for pair in stems if pair[0].shape != pair[1].shape]
        torch.testing.assert_close(ours, stem_for(theirs, stem_words(names)))
        assert not others
        image = torch.randint(0, 256, (len(names), 64, 96), dtype=torch.uint8)
        (found,) = model([{"image": image, "height": 64, "width": 96}])
        assert found


FIVE = {"MODEL.PIXEL_MEAN": MEANS, "MODEL.PIXEL_STD": STDS, "INPUT.CHANNELS": [*RGBN, "swir"]}


def test_weights_of_other_projects_for_channels_need_their_names():
    tensors = torchvision.models.resnet18().state_dict()
    tensors["conv1.weight"] = torch.randn(64, 5, 7, 7)
    with pytest.raises(UserError, match=r"stem.conv1.weight is \(64, 5, 7, 7\), expected \(64, 3, 7, 7\)"):
        convert(tensors)
    with pytest.raises(UserError, match="PIXEL_MEAN has 5 values, for 3 channels: state INPUT.CHANNELS"):
        convert(tensors, stated={**FIVE, "INPUT.CHANNELS": None})
    weights = convert(tensors, stated=FIVE)
    assert weights.flags.items() >= FIVE.items() and as_rgb(weights) is weights
    network = Network.of(weights)
    assert network.pooled(torch.zeros(2, 5, 64, 64, dtype=torch.uint8)).shape == (2, 512)
    with pytest.raises(UserError, match="the network sees 5 channels, and images have 3: expected weights that were"):
        network.pooled(torch.zeros(2, 3, 64, 64, dtype=torch.uint8))
