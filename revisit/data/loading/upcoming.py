"""A worker's next batches, for a plug-in that asks a store for their bytes before they are wanted."""

from collections.abc import Callable, Iterator
from typing import Protocol

from revisit.plugins import import_modules, load_plugins

from detectron2.config import CfgNode

Batches = Iterator[list[dict]]  # the records of each batch that a worker will make, in order


class ReadsAhead(Protocol):
    """What reads the batches of one worker."""

    def begin(self, records: list[dict]) -> None:
        """A batch of these records begins: ``hold`` its bytes (images/image_bytes.py)."""


_READERS: list[Callable[[CfgNode, Batches], ReadsAhead | None]] = []


def register_reader(make: Callable[[CfgNode, Batches], ReadsAhead | None]) -> None:
    """``make(cfg, batches)`` is called in every worker before its first batch; None: these are not its to read."""
    _READERS.append(make)


def reader_of(cfg: CfgNode, batches: Batches) -> ReadsAhead | None:
    """The first that takes the batches; None: images are read when they are wanted."""
    load_plugins()  # in a worker that is no fork nothing is registered yet
    import_modules(cfg.IMPORTS)
    for make in _READERS:
        if reader := make(cfg, batches):
            return reader
    return None
