"""One run, one folder: a lock on OUTPUT_DIR, and a file in it that says whose it is."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from revisit.errors import UserError

FILE = "run.lock"  # the record of the owner
_LOCK = ".run.lock"  # what the kernel locks: filelock's own
_held: dict[Path, str] = {}  # by this process: folders, and what their records say


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold ``folder``, which is made where it is missing, for this process until the block ends.

    If a process dies, the kernel frees its folder. Whether a process on another machine is alive cannot be known: its
    record blocks the folder until somebody deletes it, unless both are the same SLURM job, which runs once.

    Raises:
        UserError: the folder belongs to another run, or cannot be written.
    """
    path = folder / FILE
    lock = FileLock(folder / _LOCK)
    host = socket.gethostname()
    job = os.environ.get("SLURM_JOB_ID", "")
    mine = {"host": host, "process": os.getpid(), "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}", "job": job}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
        before = _read(path)
        if before and before.get("host") != host and not (job and before.get("job") == job):
            lock.release()
            raise UserError(
                f"{folder} belongs to {_words(before)}, which this machine cannot ask. If that run is over, delete "
                f"{path} and start again; if not, take another OUTPUT_DIR"
            )
        _held[folder] = json.dumps(mine)
        path.write_text(_held[folder])
    except Timeout as error:
        raise UserError(
            f"{folder} belongs to a run that is alive: {_words(_read(path))}. Wait for it, stop it, or take another "
            "OUTPUT_DIR"
        ) from error
    except OSError as error:
        raise UserError(f"OUTPUT_DIR {folder} cannot be written ({error}): choose another one") from error
    try:
        yield
    finally:
        if _is_mine(folder):
            path.unlink()
            (folder / _LOCK).unlink(missing_ok=True)
        del _held[folder]
        lock.release()


def owner_of(folder: Path) -> str:
    """Who has locked ``folder``, in words; "nobody" where no record is seen here."""
    owner = _read(folder / FILE)
    return _words(owner) if owner else "nobody"


def check_owner(folder: Path) -> None:
    """Check, before a checkpoint is written, that ``folder`` is still the one that this process has locked.

    Raises:
        UserError: it was deleted or moved, and may be another run's by now.
    """
    if folder in _held and not _is_mine(folder):
        raise UserError(f"{folder} has lost its {FILE}, or is gone: this run ends without writing into it")


def _is_mine(folder: Path) -> bool:
    try:
        return (folder / FILE).read_text() == _held[folder]
    except OSError:
        return False


def _words(owner: dict) -> str:
    return f"process {owner.get('process')} on {owner.get('host')}, since {owner.get('since')}"


def has_owner(folder: Path) -> bool:
    """Whether a run has the folder, or has died in it."""
    return (folder / FILE).is_file()


def _read(path: Path) -> dict:
    """What the record says; nothing where none is there, or its writer died while it wrote."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
