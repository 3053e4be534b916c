"""Write a file whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = ".tmp"  # the ending of a file that is being written, which a killed process leaves


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` for the block to write, which becomes ``path`` if the block succeeds.

    By then its bytes are on the disk: neither a killed process nor a power cut leaves a part of a file as ``path``.
    """
    temporary = path.with_name(f"{path.name}{UNFINISHED}")
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
        _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
