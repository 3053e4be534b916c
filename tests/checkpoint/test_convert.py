"""Conversion of our own runs: every tensor placed, nothing left over, nothing let through."""

from importlib import import_module

import pytest
import torch
from checkpoints import run_checkpoint
from runs import assert_same
from trees import refused

from revisit.checkpoint.convert import convert
from revisit.checkpoint.run_layout import RunLayout
from revisit.checkpoint.source_layout import SOURCE_LAYOUT_REGISTRY, SourceLayout


def test_a_run_keeps_the_pixel_statistics_that_it_was_trained_under():
    own = {"MODEL.PIXEL_MEAN": [10.0, 20.0, 30.0], "MODEL.PIXEL_STD": [1.0, 2.0, 3.0]}
    checkpoint = run_checkpoint(*(item for pair in own.items() for item in pair))
    converted = convert(checkpoint)
    assert converted.flags == checkpoint["flags"] and converted.flags.items() >= own.items()


@pytest.mark.parametrize("method", ["MoCo", "KNNMoCo", "DenseCL"])
def test_momentum_encoder_heads_and_queue_are_left_out(method):
    checkpoint = run_checkpoint("MODEL.META_ARCHITECTURE", method, "VIEWS.NUM_SMALL", 0)
    converted = convert(checkpoint, name="x.pth")
    expected = {k.removeprefix("backbone."): v for k, v in checkpoint["model"].items() if k.startswith("backbone.")}
    assert_same(converted.tensors, expected)
    assert converted.origin == "revisit: x.pth"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("backbone.res3.0.conv1.weight"), "no value for res3.0.conv1.weight"),
        (lambda t: t.pop("backbone.stem.conv1.weight"), "no value for stem.conv1.weight"),
        (lambda t: t.update({"backbone.res9.weight": torch.zeros(1)}), "cannot place res9.weight"),
        (lambda t: t.update({"backbone.stem.conv1.weight": torch.zeros(8, 3, 3, 3)}), "stem.conv1.weight is"),
        (lambda t: [t.pop(k) for k in list(t) if k.startswith("backbone.")], "no backbone recognised"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, message):
    checkpoint = run_checkpoint()
    change(checkpoint["model"])
    refused(message, convert, checkpoint)


def test_what_a_run_says_of_its_training():
    checkpoint = {"model": {}, "method": "MoCo", "iteration": 99, "trainer": {"seed": 3}}
    assert RunLayout().training(checkpoint) == "MoCo, 100 iterations, seed 3"
    assert RunLayout().training({"model": {}, "trainer": {}}) == ""
    assert SourceLayout().training({"state_dict": {}, "epoch": 200, "iteration": None}) == "epoch 200"


def test_a_source_without_layout_lists_all():
    refused("--source mocco: expected one of auto, revisit, .*detectron2; did you mean moco", convert, {}, "mocco")


def test_a_layout_from_outside_the_tree_converts(monkeypatch):
    monkeypatch.setattr(SOURCE_LAYOUT_REGISTRY, "_obj_map", dict(SOURCE_LAYOUT_REGISTRY._obj_map))
    import_module("halves")
    tensors = convert(run_checkpoint()).tensors
    expected = {key: value for key, value in tensors.items() if value.is_floating_point()}
    halves = {f"net.{part}.{key}": value / 2 for part in "ab" for key, value in expected.items()}
    found = convert({"state_dict": halves, "epoch": 3}, name="x.pth")
    assert_same(found.tensors, expected)
    assert (found.origin, found.licence, found.notes) == ("halves: x.pth, epoch 3", "MIT", ("the halves are added",))
