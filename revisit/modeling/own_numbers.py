"""Numbers that a network keeps between its steps beside its tensors, such as RetinaNet's running normaliser."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def unmoved_numbers(network: nn.Module) -> Iterator[None]:
    """After the block all numbers among the attributes of a network's modules are as before it, and there are no more:
    a pass over images of one kind leaves the losses of another kind as they are."""
    before = {module: _numbers(vars(module)) for module in network.modules()}
    try:
        yield
    finally:
        for module, numbers in before.items():
            for attribute in _numbers(vars(module)).keys() - numbers.keys():
                delattr(module, attribute)
            vars(module).update(numbers)


def _numbers(attributes: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in attributes.items() if type(value) in (int, float)}
