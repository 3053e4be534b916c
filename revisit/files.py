"""Files: fetch one from a URL, write one whole or not at all into a folder that is made or refused, read YAML that
anybody may have written."""

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from revisit.errors import FolderGoneError, UserError, expect, first_line

UNFINISHED = ".tmp"  # the ending of a file that is being written, which a killed process leaves
DIGEST = ".sha256"  # the ending of the record of what was written
WRITTEN = f"written{DIGEST}"  # the record of many files, in their folder
_LINE_OF_RECORD = re.compile("^([0-9a-f]{64})  (.+)$", re.MULTILINE)
_OF_OURS = re.compile(rf"\.[0-9a-f]{{8}}(\.[^.]*)?{re.escape(UNFINISHED)}$")  # the end of its name
_LONGEST = 40  # characters of a name that a temporary one takes over, so that it is not too long for a disk
_MOST_BYTES_OF_NAME = 200
_NO_ROOM = re.compile(r"inline_container|os error (27|28|122)\b")  # by torch's writer of files, by Rust's libraries
# A URL, or what Path makes of one; also what scp takes for another machine.
_ELSEWHERE = re.compile(r"://|^[\w+.:@-]+:/")
# More than any config or list of classes has; whole numbers of that many characters can still be printed.
MOST_BYTES, MOST_VALUES, MOST_CHARACTERS, DEEPEST = 2**20, 100_000, 3_000, 50


@contextmanager
def written_whole(path: Path, *, lasting: bool = True) -> Iterator[Path]:
    """An empty file next to ``path`` for the block to write, which becomes ``path`` if the block succeeds.

    By then its bytes are on the disk: neither a killed process nor a power cut leaves a part of a file as ``path``. One
    that is not ``lasting`` spares the 20 ms that this may take: a power cut may damage it, so its reader checks it.
    Nobody knows its name before, so no link that somebody has put there leads the writer to another file.
    Raises OSError where the disk is full, whatever the writing library raises, and FolderGoneError.
    """
    with _in_its_folder(path), _temporary(path) as temporary:
        try:
            yield temporary
            if lasting:
                _flush(temporary)
            os.replace(temporary, path)
            if lasting:
                _flush(path.parent)
        except Exception as error:
            if isinstance(error, OSError) or not _NO_ROOM.search(str(error)):
                raise
            free = shutil.disk_usage(path.parent).free / 1e6
            raise OSError(errno.ENOSPC, f"{first_line(error)}; {free:.1f} MB are free", str(path)) from error


@contextmanager
def _in_its_folder(path: Path) -> Iterator[None]:
    """A block that writes a file. Raises FolderGoneError where somebody has removed the folder meanwhile."""
    try:
        yield
    except FileNotFoundError as error:
        if path.parent.is_dir():
            raise
        raise FolderGoneError(path.parent) from error


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A new file in the folder of ``path``, gone after the block, with a lock that says that its writer is alive.

    Of ``model_final.pth`` it is called ``model_final.0123abcd.pth.tmp``.
    """
    temporary, descriptor = _new_file(path)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
        os.close(descriptor)


def _new_file(path: Path) -> tuple[Path, int]:
    """Name and descriptor of a new file with a lock; of another one where ``remove_unfinished`` came first."""
    while True:
        name = f"{path.stem[:_LONGEST]}.{secrets.token_hex(4)}{path.suffix[:_LONGEST]}{UNFINISHED}"
        temporary = path.with_name(name)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if temporary.exists():
            return temporary, descriptor
        os.close(descriptor)


@contextmanager
def one_at_a_time(lock: str | Path, busy: str = "") -> Iterator[None]:
    """A block that one process at a time enters. Who waits for a lock that is deleted takes the next one.

    Raises UserError with the words ``busy``, where there are any, in place of waiting.
    """
    from filelock import FileLock, Timeout  # not at start-up

    try:
        taken = FileLock(lock).acquire(blocking=not busy)
    except Timeout as error:
        raise UserError(busy) from error
    with taken:
        try:
            yield
        finally:
            Path(lock).unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove the files that processes were writing here by ``written_whole`` when they were killed."""
    for entry in filter(os.DirEntry.is_file, os.scandir(folder)):
        if not _OF_OURS.search(entry.name):
            continue
        # It may be of a process that writes it, or has finished it, or of another user; some disks have no locks.
        with suppress(OSError), open(os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(entry.path)


def write_whole(path: Path, text: str) -> None:
    """Write a text, whole or not at all; names of files in it need not be UTF-8."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")


def write_correctable(path: Path, text: str) -> None:
    """Write a text that somebody may correct by hand, and next to it its digest, which ``sha256sum -c`` reads.

    Raises UserError where what is there has been corrected, see ``expect_uncorrected``.
    """
    expect_uncorrected(path)
    record = path.with_name(f"{path.name}{DIGEST}")
    record.unlink(missing_ok=True)  # a process that is killed here leaves a file without one, and none of another file
    write_whole(path, text)
    write_whole(record, f"{file_digest(path)}  {path.name}\n")


def expect_uncorrected(path: Path) -> None:
    """Raises UserError where a file is not what ``write_correctable`` has written; one without a record may be."""
    record = path.with_name(f"{path.name}{DIGEST}")
    if path.is_file() and record.is_file():
        expect(
            record.read_text(errors="replace").split()[:1] == [file_digest(path)],
            f"{path} has been changed since it was written, such as by corrections: move it, or give another --output",
        )


def record_written(folder: Path, files: Iterable[Path]) -> None:
    """Keep the digests of many files below a folder that somebody may correct by hand, after those of earlier calls:
    in one file, which ``sha256sum -c`` reads there."""
    digests = _recorded(folder) | {str(path.relative_to(folder)): file_digest(path) for path in files}
    write_whole(folder / WRITTEN, "".join(f"{digest}  {name}\n" for name, digest in digests.items()))


def expect_all_uncorrected(folder: Path) -> None:
    """Raises UserError where a file that ``record_written`` was given has been changed since; one may be gone."""
    for name, digest in _recorded(folder).items():
        path = folder / below(name, str(folder / WRITTEN))
        changed = f"{path} has been changed since it was written, such as by corrections"
        is_same = not path.is_file() or file_digest(path) == digest
        expect(is_same, f"{changed}: move it, or give another --output")


def _recorded(folder: Path) -> dict[str, str]:
    """The digests in a folder's record, by name."""
    record = folder / WRITTEN
    text = record.read_text(encoding="utf-8", errors="surrogateescape") if record.is_file() else ""
    return {name: digest for digest, name in _LINE_OF_RECORD.findall(text)}


def strict_json(content: object) -> str:
    """JSON of plain values, with null for what it does not have: NaN and infinities."""
    return json.dumps(_finite(content), indent=2, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain_name(name: object, source: str) -> str:
    """The name of a file, as a ``source`` of others states it, which is to be joined with a folder: it stays in there.

    Raises:
        UserError: no text of 1 to 200 bytes, a path, ``..``, or what no terminal shows as it stands, such as a line
            end.
    """
    is_plain = isinstance(name, str) and name.isprintable() and 0 < len(name.encode()) <= _MOST_BYTES_OF_NAME
    is_plain = is_plain and not {"/", "\\"} & {*name} and name not in (".", "..")
    expect(
        is_plain,
        f"{source} names a file {repr(name)[:200]}: expected a plain name, without folders or line ends, such as "
        "model_final.pth",
    )
    return str(name)


def below(name: str, source: str) -> str:
    """The name of a file below a folder, as a ``source`` of others states it. Raises UserError for one that leads out.

    A slash before it means nothing: ``/a/b.jpg`` is ``a/b.jpg``, which it becomes.
    """
    expect(".." not in re.split(r"[/\\]", name), f"{source} names {name}, which leads out of its folder: expected none")
    return name.lstrip("/")


def input_file(place: str | Path) -> Path:
    """The path of a file to read, which need not be there; a type of argparse. Raises UserError for a pipe or a device,
    which its reader would wait for, perhaps for ever."""
    path = Path(place)
    expect(
        not path.exists() or path.is_file() or path.is_dir(),
        f"{path} is a pipe or a device: expected a file, such as one that its content was written to",
    )
    return path


def output_path(place: str | Path, name: str = "the output") -> Path:
    """A place to write to, as a user has named it; a type of argparse. Raises UserError, with ``name``, for a URL."""
    text = str(place)
    expect(text != "", f"{name} has an empty name: expected a folder or a file")
    expect(
        not _ELSEWHERE.search(text),
        f"{name} {text} is not on this machine, and nothing here writes elsewhere: expected a folder or a file, "
        "which you can copy there afterwards",
    )
    return Path(text).expanduser()


def make_folder(folder: Path, name: str) -> None:
    """Make a folder that a user has named, or remove from it what killed processes have left half written.

    Raises UserError where it cannot be one to write to, with ``name``.
    """
    output_path(folder, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a name that no file system takes
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{name} {str(folder)!r} cannot be a folder ({reason}): expected another name") from error
    expect(os.access(folder, os.W_OK | os.X_OK), f"{name} {folder}: you may not write there; expected another one")
    with suppress(OSError):  # a folder that may be written to, but not listed
        remove_unfinished(folder)


def make_place(file: Path, name: str, *suffixes: str) -> None:
    """Make the folder of a file that a user has named; UserError, with ``name``, for a folder or another suffix."""
    expected = f"expected a name in {' or '.join(suffixes)}"
    expect(not file.is_dir(), f"{name} {file} is a folder: {expected}")
    expect(file.suffix.lower() in suffixes, f"{name} {file}: {expected}")
    make_folder(file.parent, f"the folder of {name}")


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_cache() -> Path:
    """What is made or fetched once and kept for the user: XDG_CACHE_HOME or ~/.cache, then ``revisit``."""
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    home = stated if stated.is_absolute() else Path("~/.cache").expanduser()
    return home / "revisit"


def is_url(name: str) -> bool:
    return "://" in name


def local_copy(name: str, what: str = "file") -> Path:
    """The path itself, or where a copy of a URL is kept, whose name has no query such as ``?sig=...``.

    Raises:
        UserError: a URL that cannot be fetched, with ``what`` it is for.
    """
    if not is_url(name):
        return Path(name).expanduser()
    copy = ""
    reason = "no file is there, or nothing here fetches such a URL"
    cause = None
    try:
        copy = _fetch(name)
    except Exception as error:  # whatever a handler's library raises
        reason, cause = first_line(error), error
    if not Path(copy).is_file():
        raise UserError(
            f"{what} {name} cannot be fetched ({reason}): fetch it where there is a network, and name the file"
        ) from cause
    return Path(copy)


def _fetch(url: str) -> str:
    from iopath.common.download import download
    from iopath.common.file_io import get_cache_dir

    from detectron2.utils.file_io import PathManager  # not at start-up: it takes a second

    parts = urlsplit(url)
    if not (parts.query and parts.scheme in ("http", "https")):
        return PathManager.get_local_path(parts._replace(query="").geturl())
    # PathManager's name of the copy would end in the query instead of the suffix.
    copy = Path(get_cache_dir()) / hashlib.sha256(url.encode()).hexdigest()[:16] / Path(parts.path).name
    copy.parent.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(f"{copy}.lock"):
        if not copy.is_file():
            download(url, str(copy.parent), filename=copy.name)
    return str(copy)


def file_digest(path: str | Path, kind: str = "sha256") -> str:
    """The digest of a file's bytes by hashlib's ``kind``, hexadecimal."""
    with open(path, "rb") as content:
        return hashlib.file_digest(content, kind).hexdigest()


def read_yaml(path: str | Path, *, as_text: bool = False) -> Any:
    """The plain values of a YAML file: dicts, lists, text, numbers, dates.

    Args:
        as_text: every value that is neither dict nor list is text as it stands there, so that ``no`` is no False.

    Raises:
        UserError: no such file, none of YAML, or one with a key twice, a Python object, or more than MOST_BYTES,
            MOST_VALUES (its aliases written out), MOST_CHARACTERS of one value, or DEEPEST levels.
    """
    try:
        with open(input_file(path), "rb") as file:
            content = file.read(MOST_BYTES + 1)
        expect(len(content) <= MOST_BYTES, f"larger than {MOST_BYTES / 2**20:g} MiB: expected a short YAML file")
        return deepcopy(_loaded(content, _BoundedText if as_text else _Bounded))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}: expected a YAML file") from error
    except Exception as error:  # a value may trip whatever makes a number or a date of it
        raise UserError(f"{path}: no YAML of plain values ({_place_in_yaml(error)})") from error


@lru_cache(maxsize=64)
def _loaded(content: bytes, loader: type) -> Any:
    """What YAML says. A run reads each of its recipes several times, and reading takes longer than all that follows."""
    return yaml.load(content, loader)


def read_json(path: str | Path) -> Any:
    """The plain values of a JSON file. Raises UserError where there is none, or one of too many levels."""
    try:
        return json.loads(input_file(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}: expected a JSON file") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: no JSON of plain values ({first_line(error)})") from error


def _place_in_yaml(error: Exception) -> str:
    """What is wrong, and in which line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    return f"line {mark.line + 1}: {problem}" if mark and problem else first_line(error)


class _Limits(yaml.composer.Composer):
    """Refuses, before anything is made of it, what would take more memory or time than its file's size suggests."""

    def __init__(self, stream: bytes):
        super().__init__(stream)
        self._depth, self._values = 0, 0
        self._weights: dict[int, int] = {}  # values that a node stands for, its aliases written out, by its id

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node:
        line = self.peek_event().start_mark.line + 1
        before = self._values
        is_alias = self.check_event(yaml.AliasEvent)
        self._depth += 1
        expect(self._depth <= DEEPEST, f"line {line}: more than {DEEPEST} levels")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias:
            expect(id(node) in self._weights, f"line {line}: an alias inside what it stands for")
            self._values += self._weights[id(node)]
        else:
            self._values += 1
            self._weights[id(node)] = self._values - before
        expect(self._values <= MOST_VALUES, f"line {line}: more than {MOST_VALUES:,} values")
        return node

    def compose_scalar_node(self, anchor: str | None) -> yaml.Node:
        node = super().compose_scalar_node(anchor)
        expect(
            len(node.value) <= MOST_CHARACTERS,
            f"line {node.start_mark.line + 1}: a value of more than {MOST_CHARACTERS:,} characters",
        )
        return node

    def compose_mapping_node(self, anchor: str | None) -> yaml.Node:
        node = super().compose_mapping_node(anchor)
        lines = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                earlier = lines.setdefault(key.value, line)
                expect(earlier == line, f"{key.value} stands in lines {earlier} and {line}: expected one of them")
        return node


class _Bounded(_Limits, yaml.SafeLoader):
    """With numbers, dates, True and None."""


class _BoundedText(_Limits, yaml.BaseLoader):
    """With text alone."""
