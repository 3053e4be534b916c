"""Images in tar files, in WebDataset's layout, each read by its place: the data set ``shards:DIR``.

``KEY.jpg`` (or another suffix of images) is a sample, ``KEY.cls`` next to it its class, a number as text. index.npz in
the same folder says where every image lies (shard_index.py), so that any process reads any image of any shard with one
read, and the sampler alone decides the order: shards say nothing about which worker or rank reads what, and may be
fewer than either. DIR is a folder or whatever fsspec opens (``s3://bucket/train``).
"""

import json
import logging
import os
import posixpath
import tarfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem

from projects.LargeData.places import Folder, Place, State, is_shard, permitted
from projects.LargeData.shard_index import INDEX, NO_LABEL, ShardTable, local_index, mark_of, open_index
from revisit.data.images.deep_images import deep_images
from revisit.data.images.opening import SUFFIXES
from revisit.data.sources.image_folders import is_visible
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.data.sources.rows import Rows
from revisit.errors import UserError, expect, first_few, printable, translated
from revisit.files import make_folder
from revisit.progress import progress
from revisit.threads import thread_pool

PARTIAL = "index.partial.{}.json"  # what an interrupted call has indexed, a part of the tar files in each
NOTED = 1000  # tar files of a part
MAX_SHORT_SIDE = 2**14  # px
MOST_LINKS = 10  # from one to the next
NEWEST = 4  # tar files that are compared with an index that was written before them
_MAX_CLASSES = 10**6  # evaluations reserve memory for all up to the highest

logger = logging.getLogger(__name__)


NO_NAMES = np.array([], "U1")
EXPECTED = f"files ending in {', '.join(sorted(SUFFIXES))}"


class ShardIndex(NamedTuple):
    """Where the images of some tar files lie; arrays of S shards and N images."""

    shards: np.ndarray  # (S,) str: file names
    num_bytes: np.ndarray  # (S,) int64: sizes of the files
    shard: np.ndarray  # (N,) int32 or int64, as those below: which shard an image is in
    offset: np.ndarray  # (N,): its first byte there
    size: np.ndarray  # (N,): bytes
    label: np.ndarray  # (N,): its class; all -1 where there are none
    short_side: np.ndarray | int = 0  # () int64: px; the short sides of images that were made smaller, 0 if none were
    classes: np.ndarray = NO_NAMES  # (C,) str: their names, by label; none where nobody has said them


def index_shard(place: Place, name: str) -> np.ndarray:
    """(n, 3) int64: offset, size and label of every image in a tar file, in its order; -1 without ``KEY.cls``.

    A link within the tar file is the image that it leads to. What is left out is counted in a warning, and a tar file
    without images named in one.

    Raises:
        UserError: no tar file, a truncated one, two images of one name, or a class that is no whole number.
    """
    path = f"{place}/{name}"
    with (
        translated(f"indexing {path}", content=True),
        place.open(name) as file,
        tarfile.open(fileobj=file, mode="r:") as tar,
    ):
        members = {member.name: member for member in tar}
        keys = _keys_of(members)
        images, lost = _images_of(members, keys, path)
        labels = {key: _class_in(tar.extractfile(members[name]), key, path) for name, key in keys.classes.items()}
        end = tar.offset + tarfile.BLOCKSIZE  # a tar file that ends well ends with empty blocks
        is_whole = file.seek(0, os.SEEK_END) >= end
    expect(is_whole, f"{path} is truncated: copy or make it again")
    if not images:
        logger.warning(f"{path} has no image: expected {EXPECTED}")
    if left_out := [*keys.parts, *lost]:
        why = "further parts of a sample (KEY.PART.png), or links to no file of this tar file"
        logger.warning(f"{path}: left out {len(left_out)} images such as {printable(left_out[0])}: {why}")
    return _rows([(*where, labels.get(key, NO_LABEL)) for key, where in images.items()])


def _rows(images: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array(images, np.int64).reshape(-1, 3)


class _Keys(NamedTuple):
    """What names of files in a tar file mean."""

    images: dict[str, str]  # keys of samples, by the names of their images
    classes: dict[str, str]  # by the names of KEY.cls
    parts: list[str]  # names of further images of a sample


def _keys_of(names: Collection[str]) -> _Keys:
    """A key ends at the last dot of a name, as photographs have dots in theirs. Where an image's name ends at its first
    dot, further images that begin so are parts of that sample, as WebDataset has it. Files that a plug-in reads, as
    arrays, are images where there are no others: next to these they are features."""
    keys = _Keys({}, {}, [])
    names = [name for name in names if is_visible(posixpath.basename(name))]
    suffixes = {posixpath.splitext(name)[1].lower() for name in names}
    of_images = SUFFIXES if suffixes & SUFFIXES else deep_images().SUFFIXES
    for name in names:
        key, suffix = posixpath.splitext(name)
        if suffix == ".cls":
            keys.classes[name] = key
        elif suffix.lower() in of_images:
            keys.images[name] = key
    plain = {key for key in keys.images.values() if "." not in posixpath.basename(key)}
    keys.parts.extend(name for name, key in keys.images.items() if key not in plain and _first_dot(key) in plain)
    for name in keys.parts:
        del keys.images[name]
    return keys


def _first_dot(key: str) -> str:
    """A key up to the first dot in the name of its file."""
    folder, name = posixpath.split(key)
    return posixpath.join(folder, name.partition(".")[0])


def _images_of(
    members: Mapping[str, tarfile.TarInfo], keys: _Keys, path: str
) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Offset and size of each image by its key; the names of links that lead to none."""
    images = {}
    lost = []
    places = {posixpath.normpath(name): member for name, member in members.items()}  # of ./a.jpg, too
    for name, key in keys.images.items():
        member = _followed(places, members[name])
        if member is None:
            lost.append(name)
            continue
        expect(key not in images, f"{path} has two images called {key}: expected one per sample")
        holes = f"{path} has {printable(name)} without the zeros in it (tar --sparse), which are no place to read"
        expect(not member.issparse(), f"{holes}: make it again without --sparse")
        images[key] = (member.offset_data, member.size)
    return images, lost


def _followed(places: Mapping[str, tarfile.TarInfo], member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """The file that a member is or leads to, within the tar file; None where there is none, or links go in a circle."""
    for _ in range(MOST_LINKS):
        if member.isfile():
            return member
        folder = posixpath.dirname(member.name) if member.issym() else ""
        target = places.get(posixpath.normpath(posixpath.join(folder, member.linkname)))
        if target is None or not (member.issym() or member.islnk()):
            return None
        member = target
    return None


def _class_in(file: IO[bytes] | None, key: str, path: str) -> int:
    """The number in KEY.cls."""
    text = file.read(64).strip() if file else b""  # more is no class
    if not (text.isdigit() and int(text) < _MAX_CLASSES):
        message = f"{path}: the class of {key} is {text.decode(errors='replace')!r}"
        raise UserError(f"{message}: expected a whole number from 0 on, below {_MAX_CLASSES:,}")
    return int(text)


def write_index(place: Place, names: list[str], short_side: int = 0, classes: Sequence[str] = ()) -> ShardIndex:
    """Index tar files of a place, made with that ``short_side``, and write its index.npz, whole or not at all; with the
    names of ``classes``, where labels are their numbers.

    Many files of a store are read at a time; what is indexed is noted there, so that an interrupted call continues.

    Raises:
        UserError: see index_shard; no image; some images have a class and others none.
    """
    states = place.states()
    entries, parts = _indexed(place, {name: states.get(name, State(0, "")) for name in names})
    rows = np.concatenate(entries)
    expect(len(rows), f"{place} has no image in {first_few(names)}: expected {EXPECTED}")
    numbers = np.arange(len(names), dtype=np.int64)
    shard = np.repeat(numbers, [len(images) for images in entries])
    unlabelled = rows[:, 2] == NO_LABEL
    if unlabelled.any() and not unlabelled.all():
        first = f"{place}/{names[shard[unlabelled.argmax()]]}"
        raise UserError(f"{unlabelled.sum()} of {len(rows)} images have no class (KEY.cls), the first is in {first}")
    num_bytes = np.array([states[name].size for name in names], np.int64)
    named = np.array([] if unlabelled.any() else classes, str)
    index = ShardIndex(np.array(names), num_bytes, *map(_narrowed, (shard, *rows.T)), short_side, named)
    with place.written(INDEX) as temporary, open(temporary, "wb") as file:
        np.savez(file, **index._asdict())
    for number in range(parts):
        place.remove(PARTIAL.format(number))
    return index


def _narrowed(numbers: np.ndarray) -> np.ndarray:
    """Of int32 where they fit: 16 bytes an image, where no shard is larger than 2 GB."""
    return numbers.astype(np.int32) if numbers.max() < 2**31 else numbers


def _indexed(place: Place, states: dict[str, State]) -> tuple[list[np.ndarray], int]:
    """``index_shard`` of each tar file, and how many parts of them are noted. What an interrupted call has noted is not
    read again, if it is the same file."""
    noted = _noted(place)
    entries = chain.from_iterable(part.items() for part in noted)
    done = {name: _rows(images) for name, (state, images) in entries if name in states and state == [*states[name]]}
    left = [name for name in states if name not in done]
    bar = progress("indexing", "shard", total=len(states), done=len(done))
    with bar, thread_pool(place.at_once) as pool:
        parts = len(noted)
        for start in range(0, len(left), NOTED):
            part = left[start : start + NOTED]
            for name, images in zip(part, pool.map(partial(index_shard, place), part), strict=True):
                done[name] = images
                bar.update()
            if start + NOTED < len(left):
                with place.written(PARTIAL.format(parts)) as temporary:
                    temporary.write_text(json.dumps({name: (states[name], done[name].tolist()) for name in part}))
                parts += 1
    return [done[name] for name in states], parts


def _noted(place: Place) -> list[dict[str, tuple[list, list]]]:
    """By name the state and the images of tar files, in each part that an interrupted call has noted."""
    parts = []
    while content := place.read(PARTIAL.format(len(parts))):
        parts.append(json.loads(content))
    return parts


def load_shards(root: str) -> LabelledSet:
    """Rows of all images of a folder of shards: ``file_name`` (the shard), ``offset``, ``size``, perhaps ``label``.

    Where images were made smaller, the metadata have it as ``short_side``, in px; and the names of classes.

    Raises:
        UserError: no index, a damaged one, one that lists other shards than the folder, a place that cannot be read.
    """
    root = root.rstrip("/")
    reading = f"reading {root}/{INDEX}"
    by = "which tools/make_shards.py writes, without --data of tar files there are"
    with translated(f"{reading}, {by}", content=True), permitted(reading):
        filesystem, folder = fsspec.url_to_fs(os.path.expanduser(root))
        filesystem.invalidate_cache()  # of an earlier listing in this process
        table = open_index(local_index(filesystem, folder), root if "://" in root else folder)
    _check_shards(filesystem, folder, table, root)
    if isinstance(filesystem, LocalFileSystem):
        _check_newest(Folder(Path(folder)), table)
    metadata: dict = {"short_side": table.short_side} if table.short_side else {}
    metadata |= {"thing_classes": list(table.classes)} if table.classes else {}
    return LabelledSet(Rows(table, range(len(table.file))), metadata)


def _check_shards(filesystem: fsspec.AbstractFileSystem, folder: str, table: ShardTable, root: str) -> None:
    """Compare names and sizes of the folder's tar files with the index, where the place lists its files."""
    try:
        entries = filesystem.ls(folder, detail=True)
        sizes = {posixpath.basename(entry["name"]): entry["size"] for entry in entries}
    except Exception:  # a web server need not list its files, nor say so in a certain way
        return
    indexed = dict(zip(table.names.tolist(), table.num_bytes.tolist(), strict=True))
    present = set(filter(is_shard, sizes))
    for name in sorted(indexed.keys() | present):
        is_as_indexed = name in indexed and sizes.get(name, -1) in (indexed[name], None)
        if not is_as_indexed:
            message = f"{root}/{name} has {sizes.get(name, 'no')} bytes, and {indexed.get(name, 'no')} by {INDEX}"
            raise UserError(f"{message}: copy it again, or make the index again (tools/make_shards.py without --data)")


def _check_newest(place: Folder, table: ShardTable) -> None:
    """Compare the index with the newest tar files that were written after it, once: another class may have as many
    bytes, and of a copied folder all may be newer."""
    _, written = table.state
    states = place.states()
    times = {name: int(state.version) for name, state in states.items()}
    newest = sorted((name for name in times if times[name] > written), key=times.__getitem__)[-NEWEST:]
    mark = mark_of(table, [(name, *states[name]) for name in newest])
    if not newest or mark.exists():
        return
    _compare(place, table, newest)
    with suppress(UserError, OSError):  # a cache that cannot be written to: the next call compares them again
        make_folder(mark.parent, "the folder of copied indexes (XDG_CACHE_HOME)")
        mark.touch()


def _compare(place: Folder, table: ShardTable, names: Sequence[str]) -> None:
    """Raises UserError for a tar file that has others than the index says."""
    numbers = {name: number for number, name in enumerate(table.names.tolist())}
    for name in names:
        of_shard = np.flatnonzero(table.file == numbers[name])
        unlabelled = np.broadcast_to(NO_LABEL, len(table.file))
        columns = [table.columns.get(field, unlabelled)[of_shard] for field in ("offset", "size", "label")]
        is_same = np.array_equal(index_shard(place, name), np.stack(columns, axis=1))
        way_out = "make the index again (tools/make_shards.py without --data)"
        problem = f"{place}/{name} has changed since {INDEX} was made, and has other images or classes than that says"
        expect(is_same, f"{problem}: {way_out}")


LABEL_LAYOUT_REGISTRY.register(LabelLayout("shards", "URL", load_shards))
