"""What holds of every method, checked for one model at a time."""

import inspect
from collections.abc import Callable

import pytest
import torch
from tiny import freeze_batch_norm
from torch import nn

from revisit.modeling.momentum import update_momentum_encoder

from detectron2.utils.events import EventStorage


def assert_momentum_networks_follow(model: nn.Module) -> None:
    """Every part ``momentum_NAME`` of a new model moves towards the part ``NAME``."""
    before = {name: value.detach().clone() for name, value in model.named_parameters() if name.startswith("momentum_")}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0 if name in before else 1)
    update_momentum_encoder(model)
    for name, value in before.items():
        expected = value + (1 - model.momentum)  # both began with the same values
        assert torch.allclose(model.get_parameter(name), expected, atol=1e-6), name


def assert_shuffled_keys_come_back_in_order(model: nn.Module, views: dict) -> None:
    """Keys of shuffled anchors are those of anchors in order; the model has groups of batch norm."""
    freeze_batch_norm(model.train())
    anchors = [views[name] for name in model.key_inputs]
    with EventStorage(3):
        shuffled = model.start_keys(*anchors)()
    assert model.shuffle_bn
    model.shuffle_bn = False
    for name, rows in model.start_keys(*anchors)().items():
        assert torch.allclose(shuffled[name], rows, atol=1e-6), name


def edit(monkeypatch: pytest.MonkeyPatch, function: Callable, old: str, new: str) -> None:
    """Edit a line of a function; whoever has imported it runs the edited one."""
    source = inspect.getsource(function)
    assert source.count(old) == 1
    names = dict(function.__globals__)
    exec(source.replace(old, new), names)
    monkeypatch.setattr(function, "__code__", names[function.__name__].__code__)
