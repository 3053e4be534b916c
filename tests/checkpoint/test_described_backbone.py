"""A backbone from outside of the tree: converted, loaded and exported by its description, refused without one."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
import yaml
from checkpoints import load_into, moco
from commands import one_line_error, run
from runs import assert_same
from tiny import tiny_config

from revisit import config
from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.convert import convert
from revisit.errors import UserError
from revisit.modeling.backbone.description import BACKBONE_DESCRIPTIONS

from detectron2.config import CfgNode
from detectron2.modeling import BACKBONE_REGISTRY, build_model

IMPORTS = "--imports tests.checkpoint.conv_net"  # as it is called from the repository


@pytest.fixture(autouse=True)
def conv_net(monkeypatch):
    """The module, whose registrations end with the test."""
    for registry in (BACKBONE_DESCRIPTIONS, BACKBONE_REGISTRY):
        monkeypatch.setattr(registry, "_obj_map", dict(registry._obj_map))
    monkeypatch.setattr(config, "_ADDED_BY", dict(config._ADDED_BY))
    monkeypatch.delitem(sys.modules, "conv_net", raising=False)
    return importlib.import_module("conv_net")


@pytest.fixture
def undescribed(conv_net, monkeypatch):
    monkeypatch.delitem(BACKBONE_DESCRIPTIONS._obj_map, "ConvNetDescription")


def pretraining(*options: object) -> CfgNode:
    return tiny_config("MODEL.META_ARCHITECTURE", "MoCo", "MODEL.BACKBONE.NAME", "build_conv_net", *options)


def finetuning(*options: object) -> CfgNode:
    head = ("NAME", "RevisitFCNHead", "IN_FEATURES", ["last"], "CONVS_DIM", 8, "NORM", "BN")
    keys = [f"MODEL.SEM_SEG_HEAD.{item}" if n % 2 == 0 else item for n, item in enumerate(head)]
    return pretraining("MODEL.META_ARCHITECTURE", "SemanticSegmentor", *keys, *options)


def pretrain(output: Path) -> Path:
    """A checkpoint of a run as the trainer saves it, before its first step."""
    cfg = pretraining("OUTPUT_DIR", str(output))
    RevisitCheckpointer(build_model(cfg), cfg).save("model_final", iteration=0, trainer={"seed": 1})
    return output / "model_final.pth"


def test_with_a_description_it_is_converted_and_loaded_strictly(tmp_path):
    trained = pretrain(tmp_path)
    command = f"python tools/convert_to_d2.py {trained} {tmp_path}/a.pth {IMPORTS}"
    assert "revisit layout, ConvNet, 14 tensors" in run(command, tmp_path)
    flags = yaml.safe_load((tmp_path / "a.yaml").read_text())["config"]
    assert list(flags) == ["MODEL.CONV_NET.WIDTH", "MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD", "INPUT.FORMAT"]
    expected = torch.load(trained)["model"]
    for name, value in load_into(finetuning(), tmp_path / "a.pth").backbone.state_dict().items():
        assert torch.equal(value, expected[f"backbone.{name}"]), name
    with pytest.raises(UserError, match="MODEL.CONV_NET.WIDTH is 4 here and 8 there"):
        load_into(finetuning("MODEL.CONV_NET.WIDTH", 4), tmp_path / "a.pth")
    content = torch.load(tmp_path / "a.pth")
    del content["model"]["layers.2.weight"]
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(UserError, match=r"only 11 of 12 backbone tensors .* first without: backbone.layers.2.weight"):
        load_into(finetuning(), tmp_path / "a.pth")


def test_it_comes_from_other_projects_and_goes_to_the_library_that_has_it(conv_net, tmp_path):
    tensors = {f"body.{key.removeprefix('layers.')}": value for key, value in conv_net.ConvNet(8).state_dict().items()}
    assert convert(moco(tensors)).tensors.keys() == conv_net.ConvNet(8).state_dict().keys()
    with pytest.raises(UserError, match="cannot place body.9.weight: neither a tensor of a ConvNet under"):
        convert({**tensors, "body.9.weight": torch.zeros(1)})
    torch.save(tensors, tmp_path / "in.pth")
    command = f"python tools/export_weights.py {tmp_path}/in.pth {tmp_path}/out.pth {IMPORTS} --to"
    run(f"{command} timm", tmp_path)
    assert_same(torch.load(tmp_path / "out.pth"), tensors)
    assert "A net of 8 channels by `torch.load" in (tmp_path / "out.md").read_text()
    line = one_line_error(f"{command} torchvision", tmp_path)
    assert "torchvision is not known to have a ConvNet, expected timm's" in line


def test_without_a_description_nothing_is_loaded_or_converted(undescribed, tmp_path):
    trained = pretrain(tmp_path)
    refusal = "the backbone, a ConvNet, is of no family that is described: expected ResNet"
    for cfg in (finetuning(), pretraining(), finetuning("MODEL.ALLOW_PARTIAL_BACKBONE", True)):
        with pytest.raises(UserError, match=refusal):
            load_into(cfg, trained)
    with pytest.raises(UserError, match=r"a backbone with tensors such as layers.0.weight is of no family"):
        convert(torch.load(trained))


def test_without_a_description_a_run_starts_from_nothing_and_resumes_exactly(undescribed, tmp_path):
    expected = torch.load(pretrain(tmp_path))["model"]
    cfg = pretraining("OUTPUT_DIR", str(tmp_path))
    model = build_model(cfg)
    RevisitCheckpointer(model, cfg).resume_or_load("", resume=False)
    RevisitCheckpointer(model, cfg).resume_or_load("", resume=True)
    assert_same(dict(model.state_dict()), expected)
