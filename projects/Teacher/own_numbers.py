"""Numbers that a network keeps between its steps beside its tensors, such as RetinaNet's running normaliser."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

Numbers = dict[str, dict[str, float]]  # by module, then by attribute


def numbers_of(network: nn.Module) -> Numbers:
    """All numbers among the attributes of a network's modules."""
    return {name: _numbers(vars(module)) for name, module in network.named_modules()}


@contextmanager
def with_numbers(network: nn.Module, numbers: Numbers) -> Iterator[None]:
    """Within the block the network goes by other numbers, which move on in place; after it by its own, unmoved.

    So a pass over images of one kind leaves the losses of another kind as they are.
    """
    own = numbers_of(network)
    _set_numbers(network, numbers)
    try:
        yield
        numbers.update(numbers_of(network))
    finally:
        _set_numbers(network, own)


def _numbers(attributes: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in attributes.items() if type(value) in (int, float)}


def _set_numbers(network: nn.Module, numbers: Numbers) -> None:
    """Also without those that only a step makes."""
    for name, module in network.named_modules():
        for attribute in _numbers(vars(module)):
            delattr(module, attribute)
        vars(module).update(numbers[name])
