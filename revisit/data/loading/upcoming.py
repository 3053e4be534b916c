"""A worker's next batches, for a plug-in that asks a store for their bytes before they are wanted."""

from collections.abc import Callable, Iterator
from typing import Protocol

from revisit.compat.moved import warn_of_moved
from revisit.plugins import import_modules, load_plugins

from detectron2.config import CfgNode
from fvcore.common.registry import Registry

Batches = Iterator[list[dict]]  # the records of each batch that a worker will make, in order


class ReadsAhead(Protocol):
    """What reads the batches of one worker."""

    def begin(self, records: list[dict]) -> None:
        """A batch of these records begins: ``hold`` its bytes (images/image_bytes.py)."""


READ_AHEAD_REGISTRY = Registry("READ_AHEAD")
READ_AHEAD_REGISTRY.__doc__ = """
What reads ahead: functions of the config and of ``Batches``, called in every worker before its first batch, which
return a ``ReadsAhead``; None: these are not its to read.
"""


def register_reader(make: Callable[[CfgNode, Batches], ReadsAhead | None]) -> None:
    """The door of version 0.1."""
    warn_of_moved("register_reader", "READ_AHEAD_REGISTRY.register")
    READ_AHEAD_REGISTRY.register(make)


def reader_of(cfg: CfgNode, batches: Batches) -> ReadsAhead | None:
    """The first that takes the batches; None: images are read when they are wanted."""
    load_plugins()  # in a worker that is no fork nothing is registered yet
    import_modules(cfg.IMPORTS)
    for _, make in READ_AHEAD_REGISTRY:
        if reader := make(cfg, batches):
            return reader
    return None
