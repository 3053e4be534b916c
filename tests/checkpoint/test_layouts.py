"""Checkpoints of other projects: the same backbone out of every layout, nothing left over, nothing let through."""

from __future__ import annotations

import pytest
import torch
from project_layouts import LAYOUTS, RESNET18_FLAGS, noise, random_resnet, under

from revisit.checkpoint.convert import convert, flags_to_config
from revisit.checkpoint.layouts import SHARED_WITH, SOURCES, recognise, training_of
from revisit.errors import UserError
from revisit.modeling.backbone.resnet import build_revisit_resnet_backbone

from detectron2.layers import ShapeSpec

PREFIXES = {
    "moco": "module.encoder_q.",
    "reference": "module.encoder_q.",
    "densecl": "backbone.",
    "swav": "module.",
    "virtex": "visual.cnn.",
    "torchvision": "",
    "timm": "",
}


def without_classifier(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {key: value for key, value in model.state_dict().items() if not key.startswith("fc.")}


@pytest.fixture(scope="module")
def resnet50() -> torch.nn.Module:
    return random_resnet("resnet50")


@pytest.fixture(scope="module")
def small() -> dict[str, torch.Tensor]:
    """A ResNet-18 of a sixteenth of its width: layouts are about names."""
    tensors = without_classifier(random_resnet("resnet18"))
    for key, value in tensors.items():
        for dim in range(min(2, value.dim())):
            if tensors[key].shape[dim] > 3:
                tensors[key] = tensors[key].narrow(dim, 0, value.shape[dim] // 16).clone()
    return tensors


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_the_features_of_the_network_it_came_from(resnet50, name):
    source, recognised_as, make = LAYOUTS[name]
    checkpoint = make(without_classifier(resnet50))
    converted = convert(checkpoint, source)
    assert len(converted.tensors) == len(without_classifier(resnet50))
    model = build_revisit_resnet_backbone(flags_to_config(converted.flags), ShapeSpec(channels=3)).eval()
    model.load_state_dict(converted.tensors, strict=True)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = resnet50.relu(resnet50.bn1(resnet50.conv1(x)))
        for module in (resnet50.maxpool, resnet50.layer1, resnet50.layer2, resnet50.layer3, resnet50.layer4):
            expected = module(expected)
        assert expected.std() > 0.1
        assert (model(x)["res5"] - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert recognise(checkpoint) == recognised_as


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_recognised_layout_gives_the_tensors_of_the_named_one(small, name):
    source, recognised_as, make = LAYOUTS[name]
    named, recognised = convert(make(small), source), convert(make(small))
    assert (named.source, recognised.source) == (source, recognised_as)
    assert source == recognised_as or source in SHARED_WITH[recognised_as].replace("VirTex", "virtex").lower()
    assert named.flags == recognised.flags and named.tensors.keys() == recognised.tensors.keys()
    assert all(torch.equal(value, recognised.tensors[key]) for key, value in named.tensors.items())


def test_all_sources_have_a_layout_here():
    assert {source for source, _, _ in LAYOUTS.values()} == set(SOURCES) - {"revisit"} == PREFIXES.keys()


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_projects_weights_are_for_rgb_imagenets_statistics_and_stride_in_the_3x3(small, name):
    source, _, make = LAYOUTS[name]
    narrow = {"MODEL.RESNETS.STEM_OUT_CHANNELS": 4, "MODEL.RESNETS.RES2_OUT_CHANNELS": 4}
    assert convert(make(small), source).flags == {**RESNET18_FLAGS, **narrow}


def tensors_in(checkpoint: dict) -> dict:
    return checkpoint.get("model") or checkpoint.get("state_dict") or checkpoint


@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_key_without_a_place_is_refused_in_every_layout(small, name, auto):
    source, recognised_as, make = LAYOUTS[name]
    prefix = PREFIXES[recognised_as]
    for junk in (f"{prefix}stem.fc.weight", f"{prefix}layer9.0.conv1.weight", f"{prefix}bn2.weight", "decoder.weight"):
        checkpoint = make(small)
        tensors_in(checkpoint).update(noise(junk))
        with pytest.raises(UserError, match="cannot place (res10.0.conv1.weight|.*(fc|bn2|decoder).weight)"):
            convert(checkpoint, "auto" if auto else source)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("key", ["layer2.0.bn1.running_var", "conv1.weight", "layer1.0.conv1.weight"])
def test_a_backbone_key_without_a_value_is_refused_in_every_layout(small, name, key):
    source, recognised_as, make = LAYOUTS[name]
    checkpoint = make(small)
    del tensors_in(checkpoint)[f"{PREFIXES[recognised_as]}{key}"]
    with pytest.raises(
        UserError, match="no value for res3.0.conv1.norm.running_var|has no convolution (stem|res2.0).co"
    ):
        convert(checkpoint, source)


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        ("moco", "SwAV released", "no tensor begins with module.encoder_q.layer1.0. .it holds module.conv1.weight"),
        ("swav", "MoCo v2", "no tensor begins with module.layer1.0. .*; at the top level epoch, arch, state_dict"),
        ("densecl", "VirTex model", "no tensor begins with backbone.layer1.0. or layer1.0. .it holds visual.cnn.conv1"),
        ("torchvision", "DenseCL raw", "not a checkpoint of torchvision"),
        ("virtex", "torchvision", "cannot place fc.weight"),  # its backbone has no classifier
        ("densecl", "timm", "cannot place fc.weight"),
        ("revisit", "timm", "cannot place conv1.weight"),
    ],
)
def test_a_checkpoint_of_another_source_than_named_is_refused(small, source, name, expected):
    with pytest.raises(UserError, match=expected):
        convert(LAYOUTS[name][2](small), source)


def test_what_no_source_fits_says_what_it_looked_like_and_which_are_known(small):
    checkpoint = {"epoch": 300, "model": under("base_encoder.", small)}
    with pytest.raises(UserError) as error:
        convert(checkpoint)
    message = str(error.value)
    assert "\n" not in message and len(message) < 600
    assert "base_encoder.conv1.weight" in message and "at the top level epoch, model" in message
    assert all(source in message for source in SOURCES)
    assert "module.encoder_q.layer1. (moco, reference)" in message


def test_a_converted_backbone_is_sent_on_its_way(small):
    with pytest.raises(UserError, match="use it as MODEL.WEIGHTS"):
        convert({"model": convert(small).tensors})


def test_numpy_arrays_are_converted_too(small):
    arrays = {key: value.numpy() for key, value in small.items()}
    for checkpoint in (arrays, {"model": arrays}):
        assert all(
            torch.equal(value, convert(small).tensors[key]) for key, value in convert(checkpoint).tensors.items()
        )


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bool])
def test_weights_of_other_than_floating_point_are_refused(small, dtype):
    with pytest.raises(UserError, match="res3.0.conv1.weight is a torch"):
        convert({**small, "layer2.0.conv1.weight": small["layer2.0.conv1.weight"].to(dtype)})


def test_a_convolution_without_channels_is_refused(small):
    with pytest.raises(UserError, match="no convolution res2.0.conv2.weight"):
        convert({**small, "layer1.0.conv2.weight": torch.zeros(4, 0, 3, 3)})


@pytest.mark.parametrize(
    ("ring", "method"), [("keys", "MoCo"), ("features", "kNN-MoCo"), ("dense_keys", "DenseCL"), ("labels", "")]
)
def test_what_a_run_tells_of_its_training(ring, method):
    checkpoint = {"model": noise("queue.keys", f"queue.{ring}") if ring != "labels" else {}, "iteration": 99}
    expected = f"{method}, 100 iterations, seed 3" if method else "100 iterations, seed 3"
    assert training_of({**checkpoint, "trainer": {"seed": 3}}, "revisit") == expected
    assert training_of({"model": {}, "trainer": {}}, "revisit") == ""
    assert training_of({"state_dict": {}, "epoch": 200, "iteration": None}, "moco") == "epoch 200"
