"""The bytes of an image, wherever a record says that they lie: a file, a part of a shard, perhaps at a URL."""

import functools
import os
import stat
import tarfile
import time
from collections.abc import Callable
from typing import TypeVar

import fsspec

from revisit.errors import LostContactError, UserError, first_line
from revisit.plugins import load_plugins

from fvcore.common.registry import Registry

PathLike = str | os.PathLike[str]
MAX_BYTES = 2**30
_HEAD, _TAIL = 2**16, 2**12  # bytes
PATIENCE = 180.0  # seconds that a store may be away
FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0  # seconds between tries, doubled after each
# No other try helps.
FOR_GOOD = (UserError, FileNotFoundError, PermissionError, ImportError, NotImplementedError, ValueError)
_NO_CREDENTIALS = "NoCredentialsError"  # botocore's, which need not be installed
_LATER = (408, 425, 429)  # what a web server answers where it cannot now; from 500 on, too
BLOCK = 512  # bytes, of which a tar file is made: a header, then the member's bytes, filled up
Range = tuple[str, int, int]  # a file, its first byte, and the one after the last
Size = tuple[int, int]  # height and width, px
Window = tuple[int, int, int, int]  # left, top, right and bottom, in px of the file

Answer = TypeVar("Answer")

WINDOW = "window"  # a record's field: left, top, right and bottom of the part of its file that is the image, in px
PADDED = "padded_to"  # beside a window: px of both sides, up to which a network sees the mean where no image is
SEEN = "seen_as"  # beside it: px of both sides that these become for a network of every pixel
AS_STORED = "as_stored"  # beside a window, true: the samples of its file are ids, whatever their colours
WINDOW_READER_REGISTRY = Registry("WINDOW_READER")
WINDOW_READER_REGISTRY.__doc__ = """
What reads a part of an image's file: functions of a record with a window, of which the last counts. They return the
bytes of a file that holds the window alone, of a TIFF that is AS_STORED those of a .npy file, and raise
UnreadableImageError.
"""

_held: dict[Range, bytes] = {}  # at URLs, read before they are wanted


class Patience:
    """With a store: how long it has not answered, and the waits between tries, each twice the one before."""

    def __init__(self, name: str, seconds: float):
        self._name, self._seconds, self._wait, self._last = name, seconds, FIRST_WAIT, time.monotonic()

    def answered(self) -> None:
        """Its silence counts from now on."""
        self._last = time.monotonic()

    def wait(self, error: object) -> None:
        """After an error. Raises LostContactError where the last answer is too long ago."""
        away = time.monotonic() - self._last
        if away >= self._seconds:
            raise LostContactError(f"{self._name}: no answer for {away:.0f} s ({first_line(error)})")
        time.sleep(self._wait)
        self._wait = min(2 * self._wait, LONGEST_WAIT)


def patiently(name: str, ask: Callable[[], Answer], seconds: float | None = None) -> Answer:
    """What a store answers, asked again while it is away, for PATIENCE or so many seconds.

    Raises:
        LostContactError: no answer by then. What it refuses for good is raised as it is.
    """
    patience = Patience(name, PATIENCE if seconds is None else seconds)
    while True:
        try:
            return ask()
        except Exception as error:  # packages of stores have errors of their own
            if not is_away(error):
                raise
            patience.wait(error.__cause__ or error)


def is_away(error: Exception) -> bool:
    """Whether an error is of a store that may answer later."""
    # Of a web server fsspec says FileNotFoundError, whatever it has answered to a question for a size.
    cause = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
    status = _http_status(cause)
    if isinstance(status, int):
        return status >= 500 or status in _LATER
    return not isinstance(cause, FOR_GOOD) and type(cause).__name__ != _NO_CREDENTIALS


def _http_status(error: BaseException) -> object:
    """What a server has answered, of aiohttp's errors and botocore's; None of others."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return getattr(error, "status", None)


class UnreadableImageError(Exception):
    """A file that does not hold a complete image; the message names the file and says why."""


class DeepImageError(UnreadableImageError):
    """A whole image whose samples cannot become grey levels: of more than 8 bits, or of bands without a meaning."""


class TruncatedImageError(UnreadableImageError):
    """A file that holds the first part of an image."""


def read_bytes(record: dict, most: int | None = None) -> bytes:
    """The bytes of a record's image, or their first ``most``, which may raise OSError; empty of an array in memory."""
    if "image" in record:
        return b""
    if WINDOW in record:
        return _read_window(record, most)
    if most is None:
        return read_sample(record) if "offset" in record else read_file(record["file_name"])
    start = record.get("offset", 0)
    return _read_range(str(record["file_name"]), start, start + most)


def _read_window(record: dict, most: int | None) -> bytes:
    """The first bytes are those of a window of one pixel, which takes less than the whole."""
    load_plugins()
    readers = [reader for _, reader in WINDOW_READER_REGISTRY]
    if not readers:
        raise UnreadableImageError(f"{record['file_name']}: windows of images need projects/Tiles")
    left, top, *_ = record[WINDOW]
    return readers[-1](record if most is None else record | {WINDOW: (left, top, left + 1, top + 1)})[:most]


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
        LostContactError: its store does not answer.
    """
    file_name, offset, size = record["file_name"], record["offset"], record["size"]
    try:
        data = _read_range(*range_of(record))
        header = tarfile.TarInfo.frombuf(data[:BLOCK], tarfile.ENCODING, "surrogateescape")
        if not header.size == size == len(data) - BLOCK:
            raise ValueError(f"{len(data) - BLOCK} of {header.size} bytes, and {size} by the index, which is another's")
    except LostContactError:
        raise
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
    return patiently(file_name, functools.partial(filesystem.cat_file, path, start=start, end=end))


def filesystem_of(file_name: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """What reads a URL in this process, and the path by which it does."""
    return _filesystem(file_name, os.getpid())


@functools.lru_cache(maxsize=4096)
def _filesystem(file_name: str, process: int) -> tuple[fsspec.AbstractFileSystem, str]:
    # By process: what talks to a server must not be carried into a forked worker.
    return fsspec.url_to_fs(file_name)
