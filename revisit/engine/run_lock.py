"""One run, one folder: a lock in OUTPUT_DIR that its owner keeps alive, and that a dead owner loses."""

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from revisit.errors import UserError

FILE = "run.lock"
BEAT = 10.0  # seconds between two signs of life
DEAD = 60.0  # seconds without one, after which an owner on another machine counts as dead
SETTLE = 1.0  # seconds after which, of several that take a lock over, the last one is sure of it

logger = logging.getLogger(__name__)
_held: dict[Path, dict] = {}  # by this process: folders, and what their locks say of it


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold ``folder``, which is made where it is missing, for this process until the block ends.

    The owner touches the file every BEAT seconds. Whoever finds it there is refused, unless the owner is dead: at once
    where that process was on this machine and is gone, else when the file has not been touched for DEAD seconds by the
    clock of its file system, which all machines share. A job that was moved to another machine waits for that long.

    Raises:
        UserError: the folder belongs to a run that is alive, or cannot be written.
    """
    path, owner, ended = folder / FILE, _this_process(), threading.Event()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _take(path, owner)
    except OSError as error:
        raise UserError(f"OUTPUT_DIR {folder} cannot be written ({error}): choose another one") from error
    heart = threading.Thread(target=_beat, args=(path, owner, ended), name="run lock", daemon=True)
    heart.start()
    _held[folder] = owner
    try:
        yield
    finally:
        del _held[folder]
        ended.set()
        heart.join()
        if _read(path) == owner:
            path.unlink(missing_ok=True)


@contextmanager
def there_to_the_end(folder: Path) -> Iterator[None]:
    """Raises UserError where something in the block cannot be written or read because ``folder`` has vanished."""
    try:
        yield
    except OSError as error:
        if folder.is_dir():
            raise
        raise UserError(f"{folder} has vanished: bring it back, and start the run again with --resume") from error


def check_owner(folder: Path) -> None:
    """Before something is written to ``folder`` that two runs must not mix: is it still this process's?

    Raises:
        UserError: its lock is gone or another run's, which may have taken it while this process stood still.
    """
    if folder in _held and (found := _read(folder / FILE)) != _held[folder]:
        what = f"now belongs to {_words(found)}" if found else f"has lost its {FILE}, or is gone"
        raise UserError(f"{folder} {what}: this run ends without writing there; start it again with --resume")


def _take(path: Path, owner: dict) -> None:
    spare = path.with_name(f"{FILE}.{owner['token']}")
    try:
        while not _create(path, owner):
            if (dead := _wait_for_death(path, spare)) is None:
                continue
            logger.warning(f"taking over {path.parent} from a run that died: {_words(dead)}")
            spare.write_text(json.dumps(owner))
            spare.replace(path)
            time.sleep(SETTLE)
            if _read(path) == owner:
                return
    finally:
        spare.unlink(missing_ok=True)


def _create(path: Path, owner: dict) -> bool:
    try:
        with open(path, "x") as file:
            json.dump(owner, file)
    except FileExistsError:
        return False
    return True


def _wait_for_death(path: Path, spare: Path) -> dict | None:
    """What the lock said of an owner that is dead; None if the lock is gone. Raises UserError for one that is alive."""
    owner, touched = _read(path), _touched(path)
    here, said = owner.get("place") == _place(), False
    while touched is not None and (latest := _touched(path)) is not None:
        alive = here and _start_of(owner["process"]) == owner["started"] != ""
        if alive or latest != touched or _read(path) != owner:
            raise UserError(
                f"{path.parent} belongs to a run that is alive: {_words(_read(path))}. Wait for it, stop it, or take "
                "another OUTPUT_DIR"
            )
        spare.touch()
        if here or _touched(spare) - touched > DEAD:
            return owner
        if not said:
            print(f"{path}: is {_words(owner)} alive? Up to {DEAD:.0f} s to know", flush=True)
        said = True
        time.sleep(BEAT / 10)
    return None


def _beat(path: Path, owner: dict, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        with suppress(OSError):  # a disk that does not answer for a moment
            if _read(path) == owner:
                os.utime(path)


def _this_process() -> dict:
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        "place": _place(),
        "started": _start_of(os.getpid()),
        "token": secrets.token_hex(8),
    }


def _words(owner: dict) -> str:
    return f"process {owner.get('process')} on {owner.get('host')}, since {owner.get('since')}"


def _read(path: Path) -> dict:
    """What the lock says of its owner; nothing while it is being written, or is gone."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _touched(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _place() -> str:
    """Where a process number means one process: a host since its last start, and a container in it."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)


def _start_of(process: int) -> str:
    """When a process of this machine was started, in the kernel's count; "" if none of that number is alive."""
    try:
        state, *rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else rest[18]
