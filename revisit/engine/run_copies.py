"""Copies of a run besides OUTPUT_DIR: for a plug-in that keeps one, and brings it back to an empty machine."""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol

from revisit.compat.moved import warn_of_moved

from detectron2.config import CfgNode
from fvcore.common.registry import Registry


class RunCopy(Protocol):
    """A kind of copy."""

    def prepare(self, cfg: CfgNode, *, resume: bool, accepted: Collection[str] = ()) -> None:
        """In every process that plans a training, before OUTPUT_DIR is read: bring back what ``resume`` wants.

        The config is merged, but neither checked nor resolved. Another run may own OUTPUT_DIR, whose files must stay.
        ``accepted`` keys may differ from those of the run (``check_same_experiment``).

        Raises:
            UserError: the copy cannot be kept, or is another run's.
        """

    def kept(self, cfg: CfgNode, *, resume: bool) -> AbstractContextManager[None]:
        """While a training runs, on its main process, which has locked OUTPUT_DIR and written config.yaml."""


RUN_COPY_REGISTRY = Registry("RUN_COPY")
RUN_COPY_REGISTRY.__doc__ = """
Copies of every training: classes, or functions without arguments, that make a ``RunCopy``. The config says whether it
does anything.
"""


def register_copy(copy: RunCopy) -> None:
    """The door of version 0.1."""
    warn_of_moved("register_copy", "RUN_COPY_REGISTRY.register")

    def made() -> RunCopy:
        return copy

    made.__name__ = type(copy).__name__
    RUN_COPY_REGISTRY.register(made)


def prepare_copies(cfg: CfgNode, *, resume: bool, accepted: Collection[str] = ()) -> None:
    """``prepare`` of all."""
    for _, copy in RUN_COPY_REGISTRY:
        copy().prepare(cfg, resume=resume, accepted=accepted)


@contextmanager
def copies_kept(cfg: CfgNode, *, resume: bool) -> Iterator[None]:
    """``kept`` of all."""
    with ExitStack() as stack:
        for _, copy in RUN_COPY_REGISTRY:
            stack.enter_context(copy().kept(cfg, resume=resume))
        yield
