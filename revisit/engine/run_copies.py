"""Copies of a run besides OUTPUT_DIR: for a plug-in that keeps one, and brings it back to an empty machine."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol

from detectron2.config import CfgNode


class RunCopy(Protocol):
    """A kind of copy."""

    def prepare(self, cfg: CfgNode, *, resume: bool) -> None:
        """In every process that plans a training, before OUTPUT_DIR is read: bring back what ``resume`` wants.

        The config is merged, but neither checked nor resolved. Another run may own OUTPUT_DIR, whose files must stay.

        Raises:
            UserError: the copy cannot be kept, or is another run's.
        """

    def kept(self, cfg: CfgNode, *, resume: bool) -> AbstractContextManager[None]:
        """While a training runs, on its main process, which has locked OUTPUT_DIR and written config.yaml."""


_COPIES: list[RunCopy] = []


def register_copy(copy: RunCopy) -> None:
    """Let every training have this copy; the config says whether it does anything."""
    _COPIES.append(copy)


def prepare_copies(cfg: CfgNode, *, resume: bool) -> None:
    """``prepare`` of all."""
    for copy in _COPIES:
        copy.prepare(cfg, resume=resume)


@contextmanager
def copies_kept(cfg: CfgNode, *, resume: bool) -> Iterator[None]:
    """``kept`` of all."""
    with ExitStack() as stack:
        for copy in _COPIES:
            stack.enter_context(copy.kept(cfg, resume=resume))
        yield
