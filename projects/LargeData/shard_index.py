"""index.npz of a folder of shards: where every image lies, as arrays that are read where they lie in the file.

The file is mapped into memory, so that a machine has its bytes once, whatever the number of processes. That of a place
at a URL is copied once to the user's cache.
"""

import hashlib
import json
import math
import mmap
import os
import struct
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem

from revisit.arrays import read_head
from revisit.data.images.image_bytes import patiently
from revisit.data.sources.rows import Table
from revisit.errors import expect, without_secrets
from revisit.files import make_folder, one_at_a_time, plain_name, user_cache, written_whole

INDEX = "index.npz"
NO_LABEL = -1
ROWS = ("shard", "offset", "size", "label")  # arrays (N,) for N images, of INTEGERS
INTEGERS = (np.int32, np.int64)
_AT_ONCE = 2**20  # bytes
AT_START = 20.0  # seconds that a store may be away before its first answer: its name may be wrong
_TAIL = 2**16  # bytes at the end of an index, which have the checksums of its arrays
_LENGTHS = struct.Struct("<HH")  # in the head of a file in a zip file, of its name and of another field


@dataclass(frozen=True)
class ShardTable(Table):
    """The images of a folder of shards, as its index.npz has them.

    Attributes:
        num_bytes: (S,) sizes of the shards.
        short_side: px, of images that were made smaller; 0 if none were.
        classes: their names, by label; () where the index has none.
        index: the file, which is open.
        state: of the file, as it was opened.
        checksums: of all arrays.
    """

    num_bytes: np.ndarray
    short_side: int
    classes: tuple[str, ...]
    index: BinaryIO
    state: tuple[int, int]
    checksums: str

    def check(self) -> None:
        is_same = _state(self.index) == self.state
        expect(is_same, f"{self.index.name} was written to while it is in use: start again, with --resume")

    def __reduce__(self) -> tuple:
        return reopen, (self.index.name, self.folder, self.checksums)


def reopen(path: str, folder: str, checksums: str) -> ShardTable:
    """The same table in another process. Raises UserError where the file is another one."""
    table = open_index(path, folder, verified=True)
    expect(table.checksums == checksums, f"{path} is another index than the one that was opened first: start again")
    return table


def open_index(path: str, folder: str, *, verified: bool = False) -> ShardTable:
    """The table of an index, for shards in ``folder``. Unless they are ``verified``, all bytes are compared with their
    checksums.

    Raises:
        ValueError, KeyError, OSError, BadZipFile: none, or a damaged one.
    """
    index = open(path, "rb")  # noqa: SIM115  (as long as the table)
    state = _state(index)
    with ExitStack() as stack:
        stack.callback(index.close)
        archive = stack.enter_context(ZipFile(index))
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        arrays = _mapped(index, members)
        if not verified:
            _verify(archive, arrays)
        stack.pop_all()  # it stays open, as long as the table
    columns = {name: arrays[name] for name in ROWS[1:]}
    if columns["label"][0] == NO_LABEL:
        del columns["label"]
    table = ShardTable(
        folder,
        arrays["shards"],
        arrays["shard"],
        columns,
        content=_checksums(members, "shards", "shard", "offset"),
        num_bytes=arrays["num_bytes"],
        short_side=int(arrays.get("short_side", 0)),
        classes=tuple(map(str, arrays.get("classes", ()))),
        index=index,
        state=state,
        checksums=_checksums(members, *members),
    )
    weakref.finalize(table, index.close)
    return table


def _mapped(index: BinaryIO, members: Mapping[str, ZipInfo]) -> dict[str, np.ndarray]:
    """The arrays of an index by name, none of which is read. Raises ValueError for arrays of another form."""
    compressed = [name for name, info in members.items() if info.compress_type != ZIP_STORED]
    if compressed:
        raise ValueError(f"{', '.join(compressed)} compressed: expected an index as it is written")
    mapped = mmap.mmap(index.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {name: _array(index, mapped, info) for name, info in members.items()}
    wrong = [name for name in ("num_bytes", *ROWS) if arrays[name].dtype not in INTEGERS]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} of another type than int32 and int64")
    images, shards = len(arrays["shard"]), len(arrays["shards"])
    expected = dict.fromkeys(ROWS, (images,)) | dict.fromkeys(("shards", "num_bytes"), (shards,))
    wrong = [name for name, shape in expected.items() if arrays[name].shape != shape or shape == (0,)]
    if wrong or arrays["shards"].dtype.kind != "U":
        raise ValueError(f"{', '.join(wrong) or 'shards'} of another form than {images} images in {shards} shards have")
    return arrays


def _array(index: BinaryIO, mapped: mmap.mmap, member: ZipInfo) -> np.ndarray:
    """The array of a file in the archive, whose bytes stay there."""
    index.seek(member.header_offset + 26)
    lengths = _LENGTHS.unpack(index.read(_LENGTHS.size))
    index.seek(sum(lengths), os.SEEK_CUR)
    head = read_head(index, member.file_size)
    return np.frombuffer(mapped, head.dtype, math.prod(head.shape), index.tell()).reshape(head.shape)


def _verify(archive: ZipFile, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError where bytes have another checksum, or for a shard or a class that cannot be, and UserError for
    a shard whose name leaves the folder."""
    if damaged := archive.testzip():
        words = "has another checksum than its bytes: remove it, and copy or write it again"
        raise ValueError(f"{damaged} of {archive.filename} {words}")
    shard, label = arrays["shard"], arrays["label"]
    for name in arrays["shards"].tolist():
        plain_name(name, archive.filename)
    if shard.min() < 0 or shard.max() >= len(arrays["shards"]):
        raise ValueError(f"images in shards up to number {shard.max()}, of {len(arrays['shards'])}")
    lowest, highest = label.min(), label.max()
    if lowest < NO_LABEL or lowest == NO_LABEL != highest:
        raise ValueError(f"classes from {lowest} to {highest}: expected one for each image, or none at all")
    names = arrays.get("classes", ())
    if len(names) and not (names.ndim == 1 and names.dtype.kind == "U" and highest < len(names)):
        raise ValueError(f"{len(names)} names of classes for labels up to {highest}")


def _checksums(members: Mapping[str, ZipInfo], *names: str) -> str:
    return " ".join(f"{name} {members[name].CRC:08x}" for name in names)


def _state(index: BinaryIO) -> tuple[int, int]:
    status = os.fstat(index.fileno())
    return status.st_size, status.st_mtime_ns


def local_index(filesystem: fsspec.AbstractFileSystem, folder: str) -> str:
    """The path of the index of a place: on this machine itself, else of its copy in the user's cache, by what its end
    says of its content. Of several processes one copies it.

    Raises what the file system does, ValueError for an index that changes meanwhile, UserError without a cache folder.
    """
    path = f"{folder}/{INDEX}"
    if isinstance(filesystem, LocalFileSystem):
        return path
    name = without_secrets(filesystem.unstrip_protocol(path))
    end = patiently(name, partial(_end_of, filesystem, path), AT_START)
    copy = user_cache() / "indexes" / f"{hashlib.sha256(end).hexdigest()[:32]}.npz"
    make_folder(copy.parent, "the folder of copied indexes (XDG_CACHE_HOME)")
    with one_at_a_time(f"{copy}.lock"):
        if not _ends_with(copy, end):
            with written_whole(copy) as temporary:
                patiently(name, partial(filesystem.get_file, path, str(temporary)), AT_START)
            if not _ends_with(copy, end):
                copy.unlink()
                raise ValueError("it was written to while it was copied: try again")
    return str(copy)


def mark_of(table: ShardTable, states: Sequence[tuple]) -> Path:
    """A file of the user's cache that is there once tar files of these states were found to be as a table says."""
    about = json.dumps([os.path.abspath(table.folder), table.checksums, states])
    return user_cache() / "indexes" / f"{hashlib.sha256(about.encode()).hexdigest()[:32]}.checked"


def _end_of(filesystem: fsspec.AbstractFileSystem, path: str) -> bytes:
    """The last bytes of a file. By its size: not every store knows ranges that count from the end."""
    size = filesystem.info(path)["size"]
    if size is None:
        return filesystem.cat_file(path)[-_TAIL:]
    start = max(1, size - _TAIL)  # never the whole, which a server without ranges gives
    end = filesystem.cat_file(path, start=start, end=size)
    no_ranges = (
        "the server gives whole files where a part is asked for (HTTP range requests), so each image would fetch"
    )
    way_out = "expected a server or a store that has them, which `python -m http.server` has not, or copies on a disk"
    expect(len(end) <= size - start, f"{path}: {no_ranges} a whole shard: {way_out}")
    return end


def _ends_with(file: Path, end: bytes) -> bool:
    if not file.is_file() or file.stat().st_size < len(end):
        return False
    with open(file, "rb") as copy:
        copy.seek(-len(end), os.SEEK_END)
        return copy.read() == end
