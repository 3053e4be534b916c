"""Write a file whole or not at all, into a folder that is made or refused."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from revisit.errors import UserError, expect, first_line

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


def strict_json(content: object) -> str:
    """JSON of plain values, with null for what it does not have: NaN and infinities."""
    return json.dumps(_finite(content), indent=2, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def make_folder(folder: Path, name: str) -> None:
    """Make a folder that a user has named. Raises UserError where it cannot be one to write to, with ``name``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a name that no file system takes
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{name} {str(folder)!r} cannot be a folder ({reason}): expected another name") from error
    expect(os.access(folder, os.W_OK | os.X_OK), f"{name} {folder}: you may not write there; expected another one")


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
