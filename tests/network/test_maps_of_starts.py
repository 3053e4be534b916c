"""Maps of ResNets, pyramids and ViTs, as the network itself has them; one line for weights without such maps."""

import hashlib

import numpy as np
import pytest
import torch
from checkpoints import run_checkpoint, write_converted
from tiny import OBJECTS, tiny_config, tiny_model

from revisit.errors import UserError
from revisit.network.dense_features import DenseFeatures
from revisit.network.frozen_network import SameNetwork, load_frozen
from revisit.network.network import Network, load_network
from revisit.network.network_maps import network_maps, resized

VIT = ("MODEL.BACKBONE.NAME", "build_timm_backbone", "MODEL.TIMM.NAME", "vit_small_patch14_dinov2")
SMALL = ("MODEL.TIMM.OPTIONS", ["img_size", 28, "embed_dim", 32, "depth", 2, "num_heads", 2])


@pytest.fixture(scope="module")
def file_of(tmp_path_factory):
    """Writes what a run with these options has, and returns the file."""

    def written(*options):
        return write_converted(run_checkpoint(*options), tmp_path_factory.mktemp("weights") / "weights.pth")

    return written


def shapes(maps: list[np.ndarray]) -> list[tuple[int, ...]]:
    for each in maps:
        assert np.linalg.norm(each, axis=2) == pytest.approx(np.ones(each.shape[:2]), abs=1e-5)
    return [each.shape for each in maps]


def test_a_resnet_has_a_map_of_the_stride_and_of_the_next(file_of, make_picture):
    weights, image = file_of(), make_picture(50, 75)
    assert shapes(DenseFeatures(weights, 4, short_side=64)(image)) == [(16, 24, 8), (8, 12, 16)]
    assert shapes(DenseFeatures(weights, 32, short_side=64)(image)) == [(2, 3, 64)]


@pytest.mark.parametrize(
    ("shape", "seen"), [((60, 90), (64, 96)), ((90, 10), (512, 64)), ((2, 4000), (32, 512)), ((4000, 20), (512, 32))]
)
def test_a_strip_is_seen_at_the_short_side_as_far_as_its_long_side_lets_it(shape, seen):
    assert resized(np.zeros((*shape, 3), np.uint8), 64, 8).shape == (*seen, 3)


@pytest.mark.parametrize("fuse", ["sum", "avg"])
@pytest.mark.parametrize("converted", [True, False])
def test_the_pyramid_of_objects_is_that_of_their_network(file_of, make_picture, tmp_path, converted, fuse):
    run, options = tmp_path / "run.pth", (*OBJECTS, "MODEL.FPN.FUSE_TYPE", fuse)
    torch.save(run_checkpoint(*options), run)
    image = make_picture(64, 96)
    computed = DenseFeatures(file_of(*options) if converted else run, 8, short_side=64, pyramid=True)(image)
    model = tiny_model(*options).eval()
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None]
    flags = run_checkpoint(*OBJECTS)["flags"]
    mean, std = (torch.tensor(flags[f"MODEL.PIXEL_{name}"]).view(3, 1, 1) for name in ("MEAN", "STD"))
    with torch.no_grad():
        maps = model.backbone((pixels - mean) / std)
    assert len(computed) == 2
    for name, ours in zip(("p3", "p4"), computed, strict=True):
        theirs = maps[name][0].permute(1, 2, 0).double().numpy()
        centred = theirs - theirs.mean(axis=(0, 1))
        assert ours == pytest.approx(centred / np.linalg.norm(centred, axis=2, keepdims=True), abs=1e-4)


def test_records_of_older_versions_still_have_its_digests(file_of):
    """Tables of images, tables of boxes with the settings of discover, and checkpoints of a distillation."""
    weights = file_of()
    network, last = load_network(weights), network_maps(weights, 32)
    flags = run_checkpoint()["flags"]
    pixels = {name: torch.tensor(flags[f"MODEL.PIXEL_{name.upper()}"]) for name in ("mean", "std")}

    def sha256(of: Network, name: str, more: dict) -> str:
        content = {f"{name}.{key}": value for key, value in of.network.state_dict().items()} | more
        parts = (key.encode() + content[key].numpy().tobytes() for key in sorted(content))
        return hashlib.sha256(b"".join(parts)).hexdigest()

    assert network.digest() == sha256(network, "network", {})
    assert DenseFeatures(weights, 32).settings["weights"] == sha256(last, "_network", pixels)
    same = SameNetwork(load_frozen(tiny_config("MODEL.WEIGHTS", str(weights)), "MODEL.WEIGHTS"), "MODEL.WEIGHTS")
    assert same.state_dict() == {"digest": sha256(network, "backbone", pixels)}


def test_a_vit_has_one_map(file_of, make_picture):
    features = DenseFeatures(file_of(*VIT, *SMALL), 16, short_side=60)
    assert shapes(features(make_picture(60, 100))) == [(4, 7, 32)]


def test_weights_without_such_maps_are_refused_in_one_line(file_of):
    with pytest.raises(UserError, match=r"has no map of stride 8, give another --stride: .* expected some of res4"):
        DenseFeatures(file_of(*VIT, *SMALL), 8)
    with pytest.raises(UserError, match="has no pyramid"):
        DenseFeatures(file_of(), 8, pyramid=True)
    with pytest.raises(UserError, match=r"has maps of the strides \[4, 8, 16, 32\] in its pyramid"):
        DenseFeatures(file_of(*OBJECTS), 64, pyramid=True)
