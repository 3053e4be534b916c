"""Images of a store, kept on a disk of this machine: what an earlier epoch or run has read is not asked for again.

Each image is a file with a checksum. Its name follows from the shard's address and version, and from its place there.
All processes of a machine share one folder and its limit; the one that holds the lock writes, in a thread of its own,
so that nobody waits for this disk.
"""

import errno
import hashlib
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Full, Queue

from filelock import FileLock, Timeout

from projects.LargeData.places import version_in
from projects.LargeData.threads import quiet_thread
from revisit.data.images.image_bytes import Range, filesystem_of
from revisit.files import make_folder
from revisit.threads import thread_pool

CHECKSUM_BYTES = 4
WAITING = 4  # batches in memory until they are written; of a disk that is slower than the store, not all are kept
BLOCK_BYTES = 4096  # of which files take whole ones
KEPT = 0.9  # share of the limit that stays when room is made, so that the next batches find some
FREE = 0.02  # share of the disk that is left to checkpoints
LONGEST_WAIT = 1.0  # seconds for the lock; a batch that does not get it is not kept
AT_ONCE = 32  # questions for versions

Fetch = Callable[[list[Range]], dict[Range, bytes]]
logger = logging.getLogger(__name__)


class Cache:
    """Files in ``folder``, at most ``limit`` bytes of the disk. ``warns``: say so if no more can be kept.

    The files that were used longest ago make room for new ones. Those that this run has used stay: an epoch needs each
    image once, so with half of the images in the cache half of the next epoch is found, and of a cache of the latest
    images only 15 %.

    Raises UserError where there can be no such folder.
    """

    def __init__(self, folder: Path, limit: int, *, warns: bool = True):
        for n in range(256):
            make_folder(folder / f"{n:02x}", "the cache of images (XDG_CACHE_HOME)")
        self._folder, self._limit, self._warns = folder, limit, warns
        self._used_bytes = folder / "used"  # a number, perhaps too high; whoever needs room counts again
        os.utime(folder)  # by the file system's clock, which may be some ms late: what this run uses is not older
        self._started = folder.stat().st_mtime
        self._is_open = True
        self._versions: dict[str, str] = {}
        self._waiting: Queue[dict[str, bytes]] = Queue(WAITING)
        quiet_thread(self._keep_all).start()

    def complete(self, ranges: list[Range], fetch: Fetch) -> dict[Range, bytes]:
        """The bytes of these ranges: what is here, and the rest from ``fetch``, which is kept soon."""
        names = self._names_of(ranges)
        found = {each: self._read(name, each) for each, name in names.items()}
        content = {each: data for each, data in found.items() if data is not None}
        new = fetch([each for each in ranges if each not in content])
        with suppress(Full):
            self._waiting.put_nowait({names[each]: data for each, data in new.items() if each in names})
        return content | new

    def wait(self) -> None:
        """Until all is kept that can be."""
        self._waiting.join()

    def _names_of(self, ranges: list[Range]) -> dict[Range, str]:
        """The name of each range's file; without those of a shard whose version the store does not say now."""
        files = {file for file, _, _ in ranges}
        if unknown := sorted(files - self._versions.keys()):
            with thread_pool(AT_ONCE) as pool:
                versions = zip(unknown, pool.map(version_of, unknown), strict=True)
                self._versions |= {file: version for file, version in versions if version is not None}
        return {each: name_of(each, self._versions[each[0]]) for each in ranges if each[0] in self._versions}

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name[2:]

    def _read(self, name: str, wanted: Range) -> bytes | None:
        """None where there is no such file, or one of another length or checksum."""
        try:
            with open(self._path(name), "rb", buffering=0) as file:
                content = file.read()
                os.utime(file.fileno())
        except OSError:
            return None
        _, start, end = wanted
        data = content[CHECKSUM_BYTES:]
        is_whole = len(data) == end - start and content[:CHECKSUM_BYTES] == checksum_of(name, data)
        return data if is_whole else None

    def _keep_all(self) -> None:
        while True:
            self._keep(self._waiting.get())
            self._waiting.task_done()

    def _keep(self, files: dict[str, bytes]) -> None:
        """Write these by name. Where that fails, nothing more is kept by this process."""
        if not (files and self._is_open):
            return
        try:
            with FileLock(self._folder / "lock", timeout=LONGEST_WAIT):
                self._write(files)
        except Timeout:
            return
        except (OSError, NotImplementedError) as error:  # the second: a file system without locks
            self._is_open = False
            if self._warns:
                reason = getattr(error, "strerror", None) or error
                logger.warning(f"{self._folder}: no more images are kept ({reason}); the run continues without")

    def _write(self, files: dict[str, bytes]) -> None:
        needed = sum(on_disk(CHECKSUM_BYTES + len(data)) for data in files.values())
        used = self._used()
        if used + needed > self._limit:
            used = self._make_room(needed)
        self._is_open = used + needed <= self._limit
        if not self._is_open:
            return
        disk = shutil.disk_usage(self._folder)
        if disk.free - needed < FREE * disk.total:
            raise OSError(errno.ENOSPC, f"{disk.free / 1e9:.1f} GB are free, {FREE:.0%} of the disk stay free")
        self._used_bytes.write_text(str(used + needed))  # before the files: after a kill it is not too low
        for name, data in files.items():
            # Neither renamed nor flushed to the disk: what a kill or a power cut tears has another checksum.
            with open(self._path(name), "wb", buffering=0) as file:
                file.write(checksum_of(name, data) + data)

    def _used(self) -> int:
        """Bytes of the disk, as last counted."""
        try:
            return int(self._used_bytes.read_text())
        except (FileNotFoundError, ValueError):
            return sum(size for _, size, _ in self._files())

    def _make_room(self, needed: int) -> int:
        """Remove what was used longest ago, up to the start of this run; returns the bytes that are used then."""
        files = sorted(self._files())
        used = sum(size for _, size, _ in files)
        for last_use, size, path in files:
            if used + needed <= KEPT * self._limit or last_use >= self._started:
                break
            os.unlink(path)
            used -= size
        return used

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """When each was last used, its bytes on the disk, its path."""
        for folder in self._folder.glob("??"):
            for entry in os.scandir(folder):
                status = entry.stat()
                yield status.st_mtime, on_disk(status.st_size), entry.path


def version_of(file: str) -> str | None:
    """By which a store tells a file from an earlier one of its name, or the size alone; None without an answer."""
    try:
        filesystem, path = filesystem_of(file)
        info = filesystem.info(path)
    except Exception:  # whoever reads the images waits for the store, and says what is wrong
        return None
    return f"{info.get('size')} {version_in(info)}"


def name_of(wanted: Range, version: str) -> str:
    """The name of a range's file, 32 hexadecimal digits."""
    return hashlib.blake2b(repr((wanted, version)).encode(), digest_size=16).hexdigest()


def checksum_of(name: str, data: bytes) -> bytes:
    """CRC-32, another one under another name."""
    return zlib.crc32(data, zlib.crc32(name.encode())).to_bytes(CHECKSUM_BYTES, "little")


def on_disk(size: int) -> int:
    """The bytes that a file of this size takes."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES
