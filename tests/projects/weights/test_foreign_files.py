"""timm's networks in files as other projects write them: the same features, or refused by name."""

import pytest
import timm
import torch
from checkpoints import efficientnet_names, noise, under
from trees import refused

from revisit.checkpoint.convert import convert
from revisit.checkpoint.flags import flags_to_config

Tensors = dict[str, torch.Tensor]

NETWORKS = {
    "resnet18": {},
    "vit_tiny_patch16_224": {"embed_dim": 48, "depth": 3, "num_heads": 3},
    "resnet26d": {"channels": [8, 8, 16, 16], "stem_width": 4},
    "convnext_atto": {"depths": [1, 1, 2, 1], "dims": [8, 16, 24, 32]},
    "tf_efficientnet_lite0": {},
}


def files_of(t: Tensors) -> dict[str, dict]:
    """By layout, files of the network with the tensors ``t``, some with another network of the same names."""
    other = {key: value + 0.5 for key, value in t.items()}
    teacher = under("backbone.", t) | noise("head.last_layer.weight_v")
    trunk = {"trunk": under("_feature_blocks.", t), "heads": noise("0.weight")}
    momentum = under("module.base_encoder.", t) | under("module.momentum_encoder.", other)
    return {
        "bare": t,
        "distributed and compiled": under("module._orig_mod.", t),
        "compiled backbone": {"state_dict": under("backbone._orig_mod.", t) | noise("head.weight")},
        "Lightning": {"state_dict": under("model.", t) | noise("criterion.weight")},
        "net": {"state_dict": under("net.", t)},
        "trunk": {"state_dict": under("model.trunk.", t)},
        "encoder": {"state_dict": under("encoder.", t) | noise("predictor.0.weight")},
        "DINO": {"student": under("module.backbone.", other), "teacher": teacher},
        "student and teacher": {"state_dict": under("student.backbone.", other) | under("teacher.backbone.", t)},
        "BYOL": {"state_dict": under("online_encoder.", t) | under("target_encoder.", other)},
        "MoCo v3": {"state_dict": momentum | noise("module.predictor.0.weight")},
        "MoCo": under("encoder_q.", t) | under("encoder_k.", other) | noise("queue", "queue_ptr"),
        "SimSiam": {
            "state_dict": under("module.encoder.", t) | noise("module.encoder.fc.6.bias", "module.predictor.0.bias")
        },
        "SwAV": under("module.", t) | noise("module.prototypes.weight", "module.projection_head.0.weight"),
        "DenseCL": {"state_dict": under("backbone.", t) | noise("queue2", "neck.mlp.0.weight")},
        "VirTex": {"model": under("visual.cnn.", t) | noise("textual.embedding.words.weight")},
        "VISSL": {"classy_state_dict": {"base_model": {"model": trunk}}},
        "masks": t | noise("mask_token"),
        "OpenMMLab": {"meta": {}, "state_dict": under("backbone.", t) | noise("neck.fc.weight")},
        "with an optimizer": {"model_state_dict": t, "optimizer": {"state": {0: {"momentum": torch.ones(2)}}}},
        "double": {key: value.double() if value.is_floating_point() else value for key, value in t.items()},
    }


LAYOUTS = list(files_of({}))


def random_network(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=5, **NETWORKS[name]).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return network


def stated(name: str) -> dict:
    options = [item for pair in NETWORKS[name].items() for item in pair]
    return {} if name == "resnet18" else {"MODEL.TIMM.NAME": name, "MODEL.TIMM.OPTIONS": options}


@torch.no_grad()
def check_features(name: str, network: torch.nn.Module, file: dict) -> None:
    weights = convert(file, stated=stated(name))
    backbone = weights.description.build(flags_to_config(weights.flags)).eval()
    backbone.load_state_dict(weights.tensors)
    images = torch.randn(1, 3, 224, 224)
    norm = weights.flags.get("MODEL.TIMM.FINAL_NORM", False)
    expected = network.forward_intermediates(images, norm=norm, intermediates_only=True)[-1]
    (features,) = backbone(images).values()
    assert expected.std() > 1e-3 and (features - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_vit_in_every_layout_gives_its_features(layout):
    name = "vit_tiny_patch16_224"
    network = random_network(name)
    check_features(name, network, files_of(network.state_dict())[layout])


@pytest.mark.fuzz
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_network_in_every_layout_gives_its_features(name, layout):
    network = random_network(name)
    check_features(name, network, files_of(network.state_dict())[layout])


def test_efficientnets_with_their_own_names_need_a_network_that_pads_as_theirs_does():
    name = "tf_efficientnet_lite0"
    network = random_network(name)
    file = under("module.", efficientnet_names(network.state_dict()))
    assert len(file) == 296 and "module._blocks.1._expand_conv.weight" in file
    check_features(name, network, file)
    refused("--timm tf_efficientnet_b0", convert, file)
    refused("--timm tf_efficientnet_b0", convert, file, stated={"MODEL.TIMM.NAME": "efficientnet_lite0"})


def test_registers_of_dinov2_are_refused_with_the_way_out():
    network = random_network("vit_tiny_patch16_224")
    file = network.state_dict() | noise("register_tokens", "mask_token")
    refused("use timm's weights", convert, file, stated=stated("vit_tiny_patch16_224"))
