"""Weights of other projects: the same backbone out of every layout, every tensor placed, nothing let through."""

import pytest
import torch
from checkpoints import (
    RESNET18_FLAGS,
    backbone_of,
    layouts,
    load_into,
    maps_of,
    noise,
    random_resnet,
    run_checkpoint,
    under,
)
from runs import assert_same
from tiny import tiny_config
from trees import refused

from projects.Weights.choosing import chosen
from revisit.checkpoint.convert import convert
from revisit.checkpoint.flags import flags_to_config
from revisit.checkpoint.sources import source_layouts
from revisit.errors import UserError

LAYOUTS = layouts({})  # for their names
SECOND = ("encoder_k", "momentum", "target", "encoder_q.0")  # networks that are left out


@pytest.fixture(scope="module")
def small() -> dict[str, torch.Tensor]:
    """A ResNet-18 of a sixteenth of its width: layouts are about names."""
    return backbone_of(random_resnet("resnet18"), 16)


@pytest.mark.parametrize("depth", [18, 34, 50, 101])
@torch.no_grad()
def test_torchvision_weights_give_torchvisions_features(depth):
    reference = random_resnet(f"resnet{depth}")
    converted = convert(reference.state_dict())
    assert (converted.source, converted.title) == ("torchvision", f"ResNet-{depth}")
    model = converted.description.build(flags_to_config(converted.flags)).eval()
    model.load_state_dict(converted.tensors, strict=True)
    x = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    expected = maps_of(reference, x)
    assert expected.std() > 0.1
    assert (model(x)["res5"] - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_named_or_recognised_gives_the_same_backbone_and_flags(small, name):
    source, recognised_as, checkpoint = layouts(small)[name]
    named, recognised = convert(checkpoint, source), convert(checkpoint)
    assert (named.source, recognised.source) == (source, recognised_as)
    known = source_layouts()[recognised_as].SHARED_WITH.replace("Barlow Twins", "barlow_twins").lower()
    assert source == recognised_as or source in known
    assert_same(named[:2], recognised[:2])
    assert_same(named[:2], convert(small)[:2])
    assert len(named.tensors) == len(small)
    narrow = {"MODEL.RESNETS.STEM_OUT_CHANNELS": 4, "MODEL.RESNETS.RES2_OUT_CHANNELS": 4}
    assert named.flags == {**RESNET18_FLAGS, **narrow}  # RGB, ImageNet's statistics, strides in the 3x3


@pytest.mark.parametrize("name", ["torchvision", "VirTex model", "MoCo without DDP"])
def test_the_module_of_distributed_training_before_every_name_is_left_out(small, name):
    checkpoint = layouts(small)[name][2]
    wrapped = {"epoch": 1, "model": under("module.", tensors_in(checkpoint))}
    assert_same(convert(wrapped)[:2], convert(checkpoint)[:2])


def test_all_sources_have_a_layout_here():
    assert {source for source, _, _ in LAYOUTS.values()} == source_layouts().keys() - {"revisit", "detectron2"}


def tensors_in(checkpoint: dict) -> dict:
    if "classy_state_dict" in checkpoint:
        return checkpoint["classy_state_dict"]["base_model"]["model"]["trunk"]
    return next(filter(None, map(checkpoint.get, ("model", "state_dict", "teacher"))), checkpoint)


def prefix_in(checkpoint: dict) -> str:
    """What stands before the backbone's names in the file."""
    first = [key for key in tensors_in(checkpoint) if key.endswith("layer1.0.conv1.weight")]
    return next(key for key in first if not any(part in key for part in SECOND)).removesuffix("layer1.0.conv1.weight")


@pytest.mark.parametrize("name", LAYOUTS)
def test_in_every_layout_a_key_without_a_place_and_a_backbone_key_without_a_value_are_refused(small, name):
    source = LAYOUTS[name][0]
    prefix = prefix_in(layouts(small)[name][2])
    keys = ("stem.fc.weight", "layer9.0.conv1.weight", "layer1.9.conv1.weight", "bn2.bias")
    for junk in (*(f"{prefix}{key}" for key in keys), "decoder.weight"):
        checkpoint = layouts(small)[name][2]
        tensors_in(checkpoint).update(noise(junk))
        for named in ("auto", source):
            refused(r"cannot place .*(fc|layer9|bn2|decoder)|no ResNet has \(3, 2, 2, 2\)", convert, checkpoint, named)
    for key in ("layer2.0.bn1.running_var", "conv1.weight", "layer1.0.conv1.weight"):
        checkpoint = layouts(small)[name][2]
        del tensors_in(checkpoint)[f"{prefix}{key}"]
        refused(r"no value for res3.0.conv1.norm.running_v|no convolution (stem|res2.0).c", convert, checkpoint, source)


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        ("moco", "SwAV released", "encoder_q. .*it holds conv1.weight"),
        ("swav", "MoCo v2", "after nothing .*; at the top level epoch, arch, state_dict"),
        ("densecl", "VirTex model", "backbone. or .*it holds visual.cnn.conv1"),
        ("torchvision", "DenseCL raw", "not a checkpoint of torchvision"),
        ("revisit", "timm", "no flags"),
    ],
)
def test_a_checkpoint_of_another_source_than_named_is_refused(small, source, name, expected):
    refused(expected, convert, layouts(small)[name][2], source)


def test_what_no_layout_fits_says_what_it_looked_like_and_the_way_out(small):
    heads = under("base_encoder.head.", noise("0.weight", "0.bias", "1.weight"))
    with pytest.raises(UserError) as error:
        convert({"epoch": 300, "model": heads, **dict.fromkeys("abcd", 0)})
    message = str(error.value)
    assert "\n" not in message and len(message) < 700
    assert f"(it holds {', '.join(heads)}; at the top level epoch, model, a, b, c)" in message
    assert "layer1.0." in message and "--timm NAME" in message


def test_of_several_networks_in_one_file_none_is_guessed_and_strip_takes_one(small):
    other = {key: value + 1 for key, value in small.items()}
    checkpoint = {"state_dict": {**under("left.", small), **under("right.", other)}}
    refused("several networks, under left., right.: name one, with --only PREFIX", convert, checkpoint)
    found, notes = chosen(checkpoint, strip="right.")
    assert_same(convert(found)[:2], convert(other)[:2])
    assert notes[0].startswith(f"--only right.: {len(other)} tensors begin with it; left out: left.bn1, left.conv1")


def test_drop_leaves_out_what_has_no_place_and_says_what(small):
    checkpoint = {"state_dict": under("module.net.", small) | noise("module.jigsaw.weight", "module.jigsaw.bias")}
    refused("cannot place jigsaw.weight.*--drop PATTERN leaves it out", convert, checkpoint)
    for of_detector in ("rpn_head.rpn_cls.weight", "teacher.roi_head.bbox_head.fc_cls.weight"):
        prefix = "teacher.backbone." if of_detector.startswith("teacher") else "backbone."
        found = {"state_dict": under(prefix, small) | noise(of_detector)}
        refused(f"cannot place {of_detector}.*mmdetection.*convert_to_d2.py .*--only {prefix}", convert, found)
    for pattern in ("jigsaw.*", "module.jigsaw.*"):
        found, notes = chosen(checkpoint, drop=[pattern])
        assert_same(convert(found)[:2], convert(small)[:2])
        assert notes[0].startswith(f"--drop {pattern}: 2 tensors dropped: {pattern.removesuffix('.*')}")
    refused("fits no tensor", chosen, checkpoint, drop=["rotation.*"])
    refused("fits no tensor", chosen, checkpoint, strip="encoder.")


def test_tensors_of_another_network_among_the_backbones_are_no_head_to_drop(small):
    refused("cannot place layer1.0.se.fc.weight.*which --timm NAME names", convert,
            {**small, **noise("layer1.0.se.fc.weight")})  # fmt: skip


def test_a_converted_backbone_needs_no_conversion(small):
    refused("use it as MODEL.WEIGHTS", convert, {"model": convert(small).tensors})


@pytest.mark.parametrize("wrap", [dict, lambda arrays: {"model": arrays}])
def test_numpy_arrays_are_converted_too(small, wrap):
    converted = convert(wrap({key: value.numpy() for key, value in small.items()}))
    assert_same(converted[:2], convert(small)[:2])


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bool])
def test_weights_of_other_than_floating_point_and_convolutions_without_channels_are_refused(small, dtype):
    with pytest.raises(UserError, match="res3.0.conv1.weight is a torch"):
        convert({**small, "layer2.0.conv1.weight": small["layer2.0.conv1.weight"].to(dtype)})
    refused("no convolution res2.0.conv2.weight", convert, {**small, "layer1.0.conv2.weight": torch.zeros(4, 0, 3, 3)})


AVERAGES = ["state_dict_ema", "model_ema", "ema_state_dict", "teacher", "ema"]


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("plain", ["model", "state_dict", "student"])
def test_of_weights_and_their_average_the_conversion_says_which_it_takes(small, average, plain):
    doubled = {"module." + key: 2 * value for key, value in small.items()} | {"n_averaged": torch.tensor(3)}
    checkpoint = {plain: small, average: doubled, "epoch": 3}
    first = small["conv1.weight"]
    for wanted, factor in (("ema", 2), ("student", 1), ("", 2 if plain == "student" else 1)):
        found, notes = chosen(checkpoint, wanted)
        converted = convert(found, "timm" if wanted == "student" else "auto")
        assert torch.equal(converted.tensors["stem.conv1.weight"], factor * first)
        taken, other = (average, "student") if factor == 2 else (plain, "ema")
        assert notes[0].startswith(f"taken: {taken}, the ")
        assert notes[0].endswith(f"--how {other} takes the other")


def test_an_average_that_is_not_there_is_refused_and_one_alone_is_taken(small):
    with pytest.raises(UserError, match="--how ema: the checkpoint has no moving average"):
        chosen({"model": small}, "ema")
    with pytest.raises(UserError, match="--how student: the checkpoint has model_ema alone"):
        chosen({"model_ema": small}, "student")
    nested = convert({"ema": {"module": small, "updates": 7}})
    assert nested.notes[0] == "taken: ema, the moving average"
    assert_same(nested[:2], convert(small)[:2])


def test_what_no_tensor_of_a_resnet_shows_is_said(small):
    assert "7x7 convolution of stride 2 that pads by 3" in convert(small).notes[1]
    cifar = convert({**small, "conv1.weight": torch.zeros(4, 3, 3, 3)})
    assert "3x3 convolution of stride 1 that pads by 1, no pooling" in cifar.notes[1]
    assert convert(run_checkpoint()).notes == ()  # whose flags say it


def test_a_foreign_file_as_model_weights_is_named(small, tmp_path):
    torch.save(layouts(small)["MoCo v2"][2]["state_dict"], tmp_path / "moco.pth")
    found = r"only 0 of \d+ backbone tensors .* in .*moco.pth, which has the layout moco, .*tools/convert_to_d2.py"
    refused(found, load_into, tiny_config(), tmp_path / "moco.pth")
