"""What files beside weights state is data: flags, options of timm's networks, what was published."""

import json

import pytest
import torch
import yaml
from trees import refused

from projects.Paper.published import read_published
from projects.Weights.stated_weights import flags_on_hub
from projects.Weights.timm_networks import form_of, hashable
from revisit.checkpoint.flags import network_flags, read_flags
from revisit.checkpoint.start import start

FLAGS = {"MODEL.RESNETS.DEPTH": 18, "INPUT.FORMAT": "RGB"}


def write_flags(folder, **more):
    path = folder / "backbone.yaml"
    path.write_text(yaml.safe_dump({"source": "moco: it", "config": FLAGS | more}))
    return folder / "backbone.pth"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("IMPORTS", ["intruder"]),
        ("OUTPUT_DIR", "/tmp/elsewhere"),
        ("MODEL.WEIGHTS", "https://example.org/a.pth"),
        ("DATASETS.TRAIN", ["folder:/etc"]),
        ("HOOKS", ["Intruder"]),
        ("INPUT.FORMAT", "https://example.org/a"),
    ],
)
def test_flags_of_weights_name_no_code_and_no_place(key, value, tmp_path):
    weights = write_flags(tmp_path, **{key: value})
    refused("backbone.yaml", read_flags, weights)
    torch.save({"model": {}, "flags": FLAGS | {key: value}}, tmp_path / "model_final.pth")
    refused("model_final.pth", start, str(tmp_path / "model_final.pth"))


def test_flags_decide_the_network_and_its_pixels_alone(tmp_path):
    weights = write_flags(tmp_path, **{"MODEL.META_ARCHITECTURE": "SimCLR"})
    flags, *_ = read_flags(weights)
    assert network_flags(flags) == FLAGS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["depth", 100_000], "depth 100000: expected at most 400"),
        (["depth", 10**9], "expected at most 400"),
        (["depth", [[200, 201]]], "expected at most 400"),
        (["img_size", [9_000, 16]], "img_size"),
        (["embed_dim", 90_000, "depth", 400], "parameters"),
        (["depth", float("nan")], "expected at most 400"),
        (["embed_dim", [1] * 101], "101 values"),
        (["pos_embed", {"a": 1}], "expected a number or a word"),
        (["act_layer", "os.system"], "expected a word"),
        (["act_layer", "https://example.org/a"], "expected a word"),
        (["checkpoint_path", "weights"], "no argument of an architecture"),
        (["depth", [[[[1]]]]], "lists"),
    ],
)
def test_a_file_does_not_state_a_network_without_end(options, message):
    def tried():
        return form_of("vit_tiny_patch16_224", hashable(options), True)

    refused(message, tried)


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "[]", json.dumps({"architecture": 3}), '{"architecture": "', "\xff"]
)
def test_a_config_of_a_hub_that_says_nothing_is_none(content, tmp_path):
    (tmp_path / "config.json").write_text(content, encoding="latin1")
    assert flags_on_hub(tmp_path / "model.safetensors") == {}


@pytest.mark.parametrize(
    ("layout", "paper"),
    [
        ("--source moco --imports intruder", "detection/toy"),
        ("--source moco --imp=intruder", "detection/toy"),
        ("--config /etc/passwd", "detection/toy"),
        ("--source moco", "detection/toy IMPORTS ('intruder',)"),
        ("--source moco", "detection/toy MODEL.WEIGHTS https://example.org/a.pth"),
        ("--source moco", "detection/toy DATASETS.TEST ('folder:/etc',)"),
        ("--source moco", "detection/toy --resume"),
        ("--source moco", "../evil"),
        ("--source moco", "detection/../../evil"),
    ],
)
def test_what_was_published_names_no_code_and_no_place(layout, paper, tmp_path):
    facts = {"title": "toy", "url": "", "licence": "CC0", "layout": layout}
    facts["scores"] = {"knn": {"value": 1, "range": [0, 2], "printed": ""}}
    path = tmp_path / "published.yaml"
    columns = {"knn": {"score": "top1", "paper": paper}}
    path.write_text(yaml.safe_dump({"columns": columns, "files": {"toy": facts}}))
    refused("published.yaml", read_published, path, "toy")
