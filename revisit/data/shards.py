"""Images in tar files, in WebDataset's layout, each read by its place: the data set ``shards:DIR``.

``KEY.jpg`` (or another suffix of images) is a sample, ``KEY.cls`` beside it its class, a number as text. index.npz in
the same folder says where every image lies, so that any process reads any image of any shard with one read, and the
sampler alone decides the order: shards say nothing about which worker or rank reads what, and may be fewer than
either. DIR is a folder or whatever fsspec opens (``s3://bucket/train``).
"""

import io
import os
import posixpath
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import fsspec
import numpy as np
from tqdm import tqdm

from revisit.data.image_bytes import BLOCK, MAX_BYTES
from revisit.data.reader import SUFFIXES
from revisit.errors import UserError, expect
from revisit.files import written_whole

from detectron2.data import MetadataCatalog

INDEX = "index.npz"
MAX_SHORT_SIDE = 2**14  # px
_NO_LABEL = -1
_MAX_CLASSES = 10**6  # evaluations reserve memory for all up to the highest


class ShardIndex(NamedTuple):
    """Where the images of some tar files lie; arrays of S shards and N images."""

    shards: np.ndarray  # (S,) str: file names
    num_bytes: np.ndarray  # (S,) int64: sizes of the files
    shard: np.ndarray  # (N,) int64: which shard an image is in
    offset: np.ndarray  # (N,) int64: its first byte there
    size: np.ndarray  # (N,) int64: bytes
    label: np.ndarray  # (N,) int64: its class; all -1 where there are none
    short_side: np.ndarray | int = 0  # () int64: px; the short sides of images that were made smaller, 0 if none were


def index_shard(path: Path) -> list[tuple[int, int, int]]:
    """(offset, size, label) of every image in a tar file, in its order; the label is -1 without ``KEY.cls``.

    Raises:
        UserError: no tar file, a truncated one, two images of one name, or a class that is no whole number.
    """
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                key, _, suffix = posixpath.basename(member.name).partition(".")
                key = posixpath.join(posixpath.dirname(member.name), key)
                where = f"{path}: {member.name}"
                expect(not member.issparse(), f"{where} is stored with holes: pack it without --sparse")
                expect(member.size <= MAX_BYTES, f"{where} has {member.size} bytes, expected at most {MAX_BYTES}")
                if member.isfile() and f".{suffix.lower()}" in SUFFIXES:
                    expect(key not in images, f"{path} has two images called {key}: expected one per sample")
                    images[key] = (member.offset_data, member.size)
                elif member.isfile() and suffix == "cls":
                    text = tar.extractfile(member).read(64).strip()  # more is no class
                    found = f"{path}: the class of {key} is {text.decode(errors='replace')!r}"
                    sound = text.isdigit() and int(text) < _MAX_CLASSES
                    expect(sound, f"{found}: expected a whole number from 0 on, below {_MAX_CLASSES:,}")
                    labels[key] = int(text)
                end = member.offset_data + -(-member.size // BLOCK) * BLOCK
    except (tarfile.TarError, OSError, ValueError) as error:
        raise UserError(f"{path} is no complete tar file ({error}): copy or make it again") from error
    expect(bool(images), f"{path} has no image: expected files ending in {', '.join(sorted(SUFFIXES))}")
    size = path.stat().st_size
    # A tar file that ends well ends with empty blocks.
    expect(size >= end + BLOCK, f"{path} is truncated after {size} bytes: copy or make it again")
    return [(*place, labels.get(key, _NO_LABEL)) for key, place in images.items()]


def write_index(folder: Path, paths: list[Path], short_side: int = 0) -> ShardIndex:
    """Index tar files of a folder, made with that ``short_side``, and write its index.npz, whole or not at all.

    Raises:
        UserError: see index_shard; some images have a class and others none.
    """
    entries = [index_shard(path) for path in tqdm(paths, unit="shard", desc="indexing", disable=None)]
    rows = np.array([row for images in entries for row in images], np.int64)
    shard = np.repeat(np.arange(len(paths)), [len(images) for images in entries])
    unlabelled = rows[:, 2] == _NO_LABEL
    if unlabelled.any() and not unlabelled.all():
        first = paths[shard[unlabelled.argmax()]]
        raise UserError(f"{unlabelled.sum()} of {len(rows)} images have no class (KEY.cls), the first is in {first}")
    names = np.array([path.name for path in paths])
    num_bytes = np.array([path.stat().st_size for path in paths], np.int64)
    index = ShardIndex(names, num_bytes, shard.astype(np.int64), *rows.T, short_side)
    with written_whole(folder / INDEX) as temporary, open(temporary, "wb") as file:
        np.savez(file, **index._asdict())
    return index


def load_shards(root: str, name: str = "") -> list[dict]:
    """Records of all images of a folder of shards: ``file_name`` (the shard), ``offset``, ``size``, perhaps ``label``.

    Where images were made smaller, the metadata of the data set ``name`` have it as ``short_side``, in px.

    Raises:
        UserError: no index, one that is damaged or disagrees with the shards, a place that cannot be read.
    """
    root = root.rstrip("/")
    try:
        filesystem, folder = fsspec.url_to_fs(os.path.expanduser(root))
        with filesystem.open(f"{folder}/{INDEX}", "rb") as file:
            index = _read_index(file.read(), f"{root}/{INDEX}")
        _check_shards(index, _sizes(filesystem, folder, index), root)
    except FileNotFoundError as error:
        hint = "of tar files that are there it makes the index with --index-only"
        raise UserError(f"no {INDEX} in {root}: expected what tools/make_shards.py writes; {hint}") from error
    except (OSError, ImportError, ValueError) as error:  # the last two: a protocol that is not installed or not known
        raise UserError(f"{root} cannot be read: {error}") from error
    files = [f"{root if '://' in root else folder}/{shard}" for shard in index.shards]
    labelled = index.label[0] != _NO_LABEL
    if name and index.short_side:
        MetadataCatalog.get(name).set(short_side=int(index.short_side))
    return [
        {"file_name": files[shard], "offset": offset, "size": size} | ({"label": label} if labelled else {})
        for shard, offset, size, label in zip(*(array.tolist() for array in index[2:6]), strict=True)
    ]


def _read_index(data: bytes, name: str) -> ShardIndex:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            if any(member.compress_type != zipfile.ZIP_STORED for member in arrays.zip.infolist()):
                raise ValueError("it is compressed, and may unpack to any size")
            index = ShardIndex(**{field: arrays[field] for field in ShardIndex._fields if field in arrays})
        side = np.asarray(index.short_side)
        if side.shape or side.dtype.kind != "i" or not 0 <= side <= MAX_SHORT_SIDE:
            raise ValueError(f"its short_side is {side}")
        sound = (
            len({len(array) for array in index[2:6]}) == 1
            and index.offset.min() >= BLOCK
            and index.size.min() >= 0
            and (index.offset + index.size <= index.num_bytes[index.shard]).all()
        )
    except Exception as error:  # damaged files raise whatever their bytes happen to trip
        raise UserError(f"{name} is damaged ({error}): make it again, tools/make_shards.py --index-only") from error
    expect(sound, f"{name} is damaged: it places images outside of their shards; make it again")
    return index


def _sizes(filesystem: fsspec.AbstractFileSystem, folder: str, index: ShardIndex) -> dict[str, int | None]:
    """Bytes of every tar file in the folder and every shard of the index that is there; None where nobody knows."""
    try:
        listed = {posixpath.basename(entry["name"]): entry["size"] for entry in filesystem.ls(folder, detail=True)}
    except Exception:  # a web server need not list its files, nor say so in a certain way
        listed = {}
    sizes = {name: size for name, size in listed.items() if name.endswith(".tar") and size is not None}
    for name in index.shards.tolist():
        if name not in sizes:
            with suppress(FileNotFoundError):
                sizes[name] = filesystem.size(f"{folder}/{name}")
    return sizes


def _check_shards(index: ShardIndex, sizes: dict[str, int | None], root: str) -> None:
    for name, expected in zip(index.shards.tolist(), index.num_bytes.tolist(), strict=True):
        expect(name in sizes, f"{root}/{name} not found, but {INDEX} lists it: copy it there")
        found = f"{root}/{name} has {sizes[name]} bytes, {expected} by {INDEX}"
        expect(sizes[name] in (expected, None), f"{found}: copy it again, or make the index again")
    if unlisted := sorted(sizes.keys() - set(index.shards.tolist())):
        found = f"{root}/{unlisted[0]} is not in {INDEX}, nor are {len(unlisted) - 1} more"
        raise UserError(f"{found}: make the index again (tools/make_shards.py --index-only), or move them away")
