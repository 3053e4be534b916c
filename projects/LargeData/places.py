"""Where shards are written and indexed: a folder of this machine, or a place in a store, such as ``s3://bucket/train``.

Both have the same methods. A file is there whole or not at all: a store has it when its upload is complete.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

import fsspec

from revisit.errors import UserError, expect, translated, without_secrets, words_of
from revisit.files import is_url, make_folder, output_path, plain_name, written_whole

WITH_BUCKETS = {"s3", "s3a", "gs", "gcs"}
# Names of versions by store: of S3, Google's and Azure's, of web servers without ETag, of Hugging Face's hub, of disks,
# of HDFS and FTP.
VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated")
VERSIONS += ("Last-Modified", "Content-MD5", "Digest", "blob_id", "mtime", "created", "modificationTime", "modify")
WAYS_OUT = {  # by the name of an exception, whose package need not be installed
    "NoCredentialsError": "expected some, such as AWS_PROFILE, or AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY",
    "PermissionError": "expected credentials that may do this",
}


@contextmanager
def permitted(doing: str) -> Iterator[None]:
    """Raises UserError where a store wants other credentials for what the block is ``doing``."""
    try:
        yield
    except Exception as error:
        way_out = WAYS_OUT.get(type(error).__name__)
        is_of_disk = getattr(error, "errno", None)
        if is_of_disk or not way_out:
            raise
        raise UserError(f"{doing}: {words_of(error)}: {way_out}") from error


@contextmanager
def asking(doing: str) -> Iterator[None]:
    """Of what a store raises, one line."""
    with translated(doing), permitted(doing):
        yield


def is_shard(name: str) -> bool:
    """Whether a file is a tar file that somebody has put there: a Mac adds a hidden one for each."""
    return name.endswith(".tar") and not name.startswith(".")


class State(NamedTuple):
    """What tells a file from an earlier one of its name."""

    size: int  # bytes
    version: str  # "" where a store says none


def version_in(info: Mapping[str, Any]) -> str:
    """Of what fsspec says of a file."""
    return str(next((info[word] for word in VERSIONS if info.get(word)), ""))


class Folder:
    """A folder of this machine."""

    at_once = 1  # files that are indexed at a time: a disk answers at once

    def __init__(self, path: Path):
        self._path = self.folder = path

    def __str__(self) -> str:
        return str(self._path)

    def make(self) -> None:
        """Raises UserError where it cannot be a folder to write to."""
        make_folder(self._path, "--output")

    def states(self) -> dict[str, State]:
        """Of its tar files, by name in sorted order."""
        paths = [path for path in sorted(self._path.glob("*.tar")) if is_shard(path.name)]
        statuses = {plain_name(path.name, str(self)): path.stat() for path in paths}
        return {name: State(status.st_size, str(status.st_mtime_ns)) for name, status in statuses.items()}

    def read(self, name: str) -> bytes | None:
        """None where there is no such file."""
        path = self._path / name
        return path.read_bytes() if path.exists() else None

    def written(self, name: str) -> AbstractContextManager[Path]:
        """A file for the block to write, which then has this name."""
        return written_whole(self._path / name)

    def created(self, name: str, text: str) -> bool:
        """Write a text that is not there yet; whether it is, or another one that somebody has written meanwhile: here
        nobody has, by a lock."""
        with self.written(name) as temporary:
            temporary.write_text(text)
        return True

    def open(self, name: str) -> BinaryIO:
        return open(self._path / name, "rb")

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)


class Store:
    """A place at a URL that fsspec reads and writes."""

    at_once = 256  # requests in flight
    folder = None

    def __init__(self, url: str):
        self._url = url.rstrip("/")
        with translated(f"opening {url}"):
            self._filesystem, self._root = fsspec.url_to_fs(self._url)

    def __str__(self) -> str:
        return without_secrets(self._url)

    def make(self) -> None:
        """Raises UserError where nothing can be written, and for a bucket that is not there: a name may be mistyped."""
        with asking(f"writing to {self}"):
            if urlsplit(self._url).scheme in WITH_BUCKETS:
                bucket, _, _ = self._root.partition("/")
                expect(self._filesystem.exists(bucket), f"{self}: no bucket {bucket}: make it first, or see its name")
            else:
                self._filesystem.makedirs(self._root, exist_ok=True)

    def states(self) -> dict[str, State]:
        """Of its tar files, by name in sorted order."""
        with asking(f"listing {self}"):
            self._filesystem.invalidate_cache()
            try:
                entries = self._filesystem.ls(self._root, detail=True)
            except FileNotFoundError:  # stores have no empty folders
                return {}
        files = {Path(entry["name"]).name: entry for entry in entries if entry["type"] == "file"}
        shards = {plain_name(name, str(self)): files[name] for name in sorted(files) if is_shard(name)}
        return {name: State(entry["size"], version_in(entry)) for name, entry in shards.items()}

    def read(self, name: str) -> bytes | None:
        """None where there is no such file."""
        try:
            return self._filesystem.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None

    @contextmanager
    def written(self, name: str) -> Iterator[Path]:
        """A file of this machine for the block to write, which is then uploaded under this name."""
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder) / name
            yield temporary
            with asking(f"writing {self}/{name}"):
                self._filesystem.put_file(str(temporary), f"{self._root}/{name}")

    def created(self, name: str, text: str) -> bool:
        """As a folder's. S3 and Google's stores let one of several commands be first, at whatever moment they ask."""
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder) / name
            temporary.write_text(text)
            with suppress(Exception):  # packages of stores have errors of their own
                self._filesystem.put_file(str(temporary), f"{self._root}/{name}", mode="create")
        with asking(f"reading {self}/{name}"):
            content = self.read(name)
        if content is None:  # the store knows no such mode, or says now why nothing can be written
            with self.written(name) as temporary:
                temporary.write_text(text)
            content = self.read(name)
        return content == text.encode()

    def open(self, name: str) -> BinaryIO:
        """Each read is a request for its bytes alone."""
        return self._filesystem.open(f"{self._root}/{name}", "rb", cache_type="none")

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):  # of another command that has removed it meanwhile, too
            self._filesystem.rm_file(f"{self._root}/{name}")


Place = Folder | Store


def place_of(text: str) -> Place:
    """A type of argparse. Raises UserError for an empty name, and for a URL that nothing here opens."""
    return Store(text) if is_url(text) else Folder(output_path(text))
