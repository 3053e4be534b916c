"""The bytes of an image, wherever a record says that they lie: a file, a part of a shard, perhaps at a URL."""

import functools
import os
import stat
import tarfile

import fsspec

PathLike = str | os.PathLike[str]
MAX_BYTES = 2**30
_HEAD, _TAIL = 2**16, 2**12  # bytes
BLOCK = 512  # bytes, of which a tar file is made: a header, then the member's bytes, filled up
Range = tuple[str, int, int]  # a file, its first byte, and the one after the last

_held: dict[Range, bytes] = {}  # at URLs, read before they are wanted


class UnreadableImageError(Exception):
    """A file that does not hold a complete image; the message names the file and says why."""


class TruncatedImageError(UnreadableImageError):
    """A file that holds the first part of an image."""


def read_bytes(record: dict, most: int | None = None) -> bytes:
    """The bytes of a record's image, or their first ``most``, which may raise OSError; empty of an array in memory."""
    if "image" in record:
        return b""
    if most is None:
        return read_sample(record) if "offset" in record else read_file(record["file_name"])
    start = record.get("offset", 0)
    return _read_range(str(record["file_name"]), start, start + most)


def read_ends(record: dict) -> bytes:
    """The first and the last bytes of an image, up to 64 kB and 4 kB; all of a smaller one, and of one in a shard.

    Raises:
        UnreadableImageError, OSError: see read_file.
    """
    if "offset" in record or os.stat(record["file_name"]).st_size <= _HEAD + _TAIL:
        return read_bytes(record)
    with open(record["file_name"], "rb", buffering=0) as file:
        head = file.read(_HEAD)
        file.seek(-_TAIL, os.SEEK_END)
        return head + file.read(_TAIL)


def first_bytes(file_name: PathLike, most: int = 16) -> bytes:
    """At most so many bytes from the start of a file; none of what is no regular file, or cannot be read."""
    try:
        if not stat.S_ISREG(os.stat(file_name).st_mode):
            return b""
        with open(file_name, "rb", buffering=0) as file:
            return file.read(most)
    except OSError:
        return b""


def read_file(file_name: PathLike) -> bytes:
    """The bytes of an image's file. Raises UnreadableImageError: missing, no regular file, or too large."""
    try:
        status = os.stat(file_name)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:  # a pipe would keep its reader waiting
            raise UnreadableImageError(f"{file_name}: no file of at most {MAX_BYTES} bytes")
        with open(file_name, "rb") as file:
            return file.read()
    except OSError as error:
        raise UnreadableImageError(f"{file_name}: {error}") from error


def read_sample(record: dict) -> bytes:
    """The bytes of an image in a shard: ``size`` bytes at ``offset``, after the header that the tar file has there.

    Raises:
        UnreadableImageError: the shard cannot be read, ends before, or has something else in that place.
    """
    file_name, offset, size = record["file_name"], record["offset"], record["size"]
    try:
        data = _read_range(*range_of(record))
        header = tarfile.TarInfo.frombuf(data[:BLOCK], tarfile.ENCODING, "surrogateescape")
        if not header.size == size == len(data) - BLOCK:
            raise ValueError(f"{len(data) - BLOCK} of {header.size} bytes, and {size} by the index, which is another's")
    except Exception as error:  # packages of remote stores have errors of their own
        raise UnreadableImageError(f"{file_name}, byte {offset}: {type(error).__name__} {error}") from error
    return data[BLOCK:]


def range_of(record: dict) -> Range:
    """Where the bytes of an image in a shard lie, with the header before them."""
    return str(record["file_name"]), record["offset"] - BLOCK, record["offset"] + record["size"]


def hold(ranges: dict[Range, bytes]) -> None:
    """Read these from memory from now on, in place of what an earlier call has given: a plug-in has asked their store
    for all at once (loading/upcoming.py)."""
    _held.clear()
    _held.update(ranges)


def _read_range(file_name: str, start: int, end: int) -> bytes:
    if (file_name, start, end) in _held:
        return _held[file_name, start, end]
    if "://" not in file_name:  # without fsspec's own steps, which small images notice
        with open(file_name, "rb", buffering=0) as file:
            file.seek(start)
            return file.read(end - start)
    filesystem, path = filesystem_of(file_name)
    return filesystem.cat_file(path, start=start, end=end)


def filesystem_of(file_name: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """What reads a URL in this process, and the path by which it does."""
    return _filesystem(file_name, os.getpid())


@functools.lru_cache(maxsize=4096)
def _filesystem(file_name: str, process: int) -> tuple[fsspec.AbstractFileSystem, str]:
    # By process: what talks to a server must not be carried into a forked worker.
    return fsspec.url_to_fs(file_name)
