"""Where shards are written and indexed: a folder of this machine, or a place in a store, such as ``s3://bucket/train``.

Both have the same methods. A file is there whole or not at all: a store has it when its upload is complete.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import fsspec

from revisit.errors import translated
from revisit.files import is_url, make_folder, output_path, written_whole


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

    def sizes(self) -> dict[str, int]:
        """Bytes of its tar files, by name in sorted order."""
        return {path.name: path.stat().st_size for path in sorted(self._path.glob("*.tar"))}

    def read(self, name: str) -> bytes | None:
        """None where there is no such file."""
        path = self._path / name
        return path.read_bytes() if path.exists() else None

    @contextmanager
    def written(self, name: str) -> Iterator[Path]:
        """A file for the block to write, which then has this name."""
        with written_whole(self._path / name) as temporary:
            yield temporary

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
        return self._url

    def make(self) -> None:
        """Raises UserError where nothing can be written."""
        with translated(f"writing to {self}"):
            self._filesystem.makedirs(self._root, exist_ok=True)

    def sizes(self) -> dict[str, int]:
        """Bytes of its tar files, by name in sorted order."""
        with translated(f"listing {self}"):
            self._filesystem.invalidate_cache()
            try:
                entries = self._filesystem.ls(self._root, detail=True)
            except FileNotFoundError:  # stores have no empty folders
                return {}
        files = {Path(entry["name"]).name: entry["size"] for entry in entries if entry["type"] == "file"}
        return {name: files[name] for name in sorted(files) if name.endswith(".tar")}

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
            with translated(f"writing {self}/{name}"):
                self._filesystem.put_file(str(temporary), f"{self._root}/{name}")

    def open(self, name: str) -> BinaryIO:
        """Each read is a request for its bytes alone."""
        return self._filesystem.open(f"{self._root}/{name}", "rb", cache_type="none")

    def remove(self, name: str) -> None:
        if self.read(name) is not None:
            self._filesystem.rm_file(f"{self._root}/{name}")


Place = Folder | Store


def place_of(text: str) -> Place:
    """A type of argparse. Raises UserError for an empty name, and for a URL that nothing here opens."""
    return Store(text) if is_url(text) else Folder(output_path(text))
