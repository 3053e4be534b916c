"""Labelled data sets, and the features of their images, kept on disk by what they depend on."""

import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from revisit.data.images.deep_images import pixel_format
from revisit.data.images.reader import require_record
from revisit.data.loading.workers import SignalSafeLoader
from revisit.data.sources.catalog import get_records
from revisit.data.sources.records import ABSENT, PRESENT, Records, files_of_record
from revisit.errors import expect
from revisit.evaluation.features import BATCH, TRANSFORMS, check_not_enlarged
from revisit.files import make_folder, one_at_a_time, output_path, write_whole
from revisit.jobs.record import left_by_earlier_call
from revisit.keys import value_of
from revisit.modeling.backbone.description import describe
from revisit.network.network import Network
from revisit.progress import progress

from detectron2.config import CfgNode
from detectron2.data import DatasetFromList, MapDataset

Labelled = tuple[np.ndarray, np.ndarray]  # features and targets
BATCHES_PER_SAVE = 16  # what an interruption loses, at most

logger = logging.getLogger(__name__)


class LabelledSet(NamedTuple):
    """A data set and its (N,) int64 classes, or (N, T) int64 of 1, 0 (difficult) and -1 where images show several."""

    name: str
    records: Records
    targets: np.ndarray


def transform_of(cfg: CfgNode) -> str:
    """How the protocol sees an image that it tests, one of TRANSFORMS."""
    return "center_crop" if cfg.LINEAR.METHOD == "sgd" else cfg.LINEAR.TRANSFORM


def read_set(cfg: CfgNode, name: str) -> LabelledSet:
    """A data set by name. Raises UserError for one without labels, of one class, or of images made too small."""
    records = get_records(name)
    check_not_enlarged(name, cfg.LINEAR.IMAGE_SIZE, "LINEAR.IMAGE_SIZE", transform_of(cfg))
    key = "labels" if "labels" in records[0] else "label"
    targets = np.array([record.get(key, -1) for record in records])
    expect(
        targets.ndim > 1 or (targets.min() >= 0 and len(np.unique(targets)) > 1),
        f"data set {name!r} has no labels of two classes: expected class folders, or a data set by name",
    )
    return LabelledSet(name, records, targets)


def check_classes(
    train: np.ndarray, test: np.ndarray, names: tuple[str, str], *, difficult_is_absent: bool = True
) -> None:
    """Raises UserError if a class of the test images has no training image, or, of several labels, all of them, or the
    two differ in their classes."""
    expect(
        train.ndim == test.ndim and train.shape[1:] == test.shape[1:],
        f"{names[0]} and {names[1]} have different classes: expected the same",
    )
    if train.ndim == 1:
        missing = np.setdiff1d(test, train)
    else:  # both have to show every class
        missing = np.flatnonzero(~((train == PRESENT).any(axis=0) & (test == PRESENT).any(axis=0)))
        lacks_it = train != PRESENT if difficult_is_absent else train == ABSENT
        everywhere = np.flatnonzero(~lacks_it.any(axis=0)).tolist()
        expect(
            not everywhere,
            f"every image of {names[0]} shows class {', '.join(map(str, everywhere))}, which nothing tells from "
            "others: expected images without it, too",
        )
    expect(not len(missing), f"no image of {' or of '.join(names)} shows class {', '.join(map(str, missing))}")


def image_loader(cfg: CfgNode, records: Records, view: Callable[..., np.ndarray], **options: object) -> DataLoader:
    """Batches of (C, size, size) uint8 views and of indices, from ``view`` of an (H, W, C) image and its index."""

    pixels = pixel_format(cfg)

    def read(item: tuple[int, dict]) -> tuple[torch.Tensor, int]:
        index, record = item
        return torch.from_numpy(view(require_record(record, pixels), index)).permute(2, 0, 1), index

    items = DatasetFromList(list(enumerate(records)), copy=False)  # one buffer, which workers share
    return SignalSafeLoader(MapDataset(items, read), num_workers=cfg.DATALOADER.NUM_WORKERS, **options)


def cached_features(cfg: CfgNode, backbone: Network, data: LabelledSet) -> Labelled:
    """Average-pooled features of every image, (N, C) float32, and the targets.

    They are read from LINEAR.CACHE, as far as the same weights, network, images and transform have left them there. Of
    processes that want the same, one computes them and the others wait.
    """
    folder = output_path(cfg.LINEAR.CACHE or Path(cfg.OUTPUT_DIR) / "features", "LINEAR.CACHE")
    make_folder(folder, "LINEAR.CACHE")
    stem = "".join(letter if letter.isalnum() else "_" for letter in data.name)
    path = folder / f"{stem}-{_features_key(cfg, backbone, data)}"
    with one_at_a_time(f"{path}.lock"):
        kept = _KeptRows(path, (len(data.records), backbone.shape.channels))
        if kept.done:
            logger.info(f"{kept.done} features of {data.name} read from {kept.rows_file}")
        if not kept.is_complete:
            _compute_missing(kept, cfg, backbone, data)
    return np.asarray(kept.rows), data.targets


def of_length_one(rows: np.ndarray) -> np.ndarray:
    """(N, C) features at a length of about 1, as the machines of an SVM see them; a row of zeros stays one."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / (lengths + 1e-5)


def _features_key(cfg: CfgNode, backbone: Network, data: LabelledSet) -> str:
    """A digest of all that decides the features of a data set."""
    family = describe(backbone)
    flags = family.FLAG_KEYS if family else ()
    nodes = {flag.rpartition(".")[0] for flag in flags}
    settings = [value_of(cfg, node).dump() for node in sorted(nodes)]
    seen = pixel_format(cfg)
    pixels = seen.bits if seen.is_of_photographs else seen
    network = (backbone.digest(pixels=True), cfg.MODEL.BACKBONE.NAME, *settings, cfg.INPUT.FORMAT, pixels)
    causes = (network, images_key(data.records), cfg.LINEAR.TRANSFORM, cfg.LINEAR.IMAGE_SIZE)
    return hashlib.sha256(repr(causes).encode()).hexdigest()[:12]


class _KeptRows:
    """Rows on disk, of which the first ``done`` have their values: PATH.npy, and how many they are in PATH.json."""

    def __init__(self, path: Path, shape: tuple[int, int]):
        self.rows_file = path.with_suffix(".npy")
        self._done_file = path.with_suffix(".json")
        self.done = 0
        if self._done_file.is_file() and self.rows_file.is_file():
            with left_by_earlier_call(self._done_file):
                self.done = int(json.loads(self._done_file.read_text()))
        if self.done:
            with left_by_earlier_call(self.rows_file):
                self.rows = np.lib.format.open_memmap(self.rows_file, "r+")
        else:
            self.rows = np.lib.format.open_memmap(self.rows_file, "w+", dtype=np.float32, shape=shape)
        with open(self.rows_file, "r+b") as file:  # a disk without room for all would kill the process on the way
            if hasattr(os, "posix_fallocate"):  # not on macOS
                os.posix_fallocate(file.fileno(), 0, self.rows_file.stat().st_size)

    @property
    def is_complete(self) -> bool:
        return self.done >= len(self.rows)

    def append(self, values: np.ndarray) -> None:
        self.rows[self.done : self.done + len(values)] = values
        self.done += len(values)

    def save(self) -> None:
        self.rows.flush()
        write_whole(self._done_file, json.dumps(self.done))


def _compute_missing(kept: _KeptRows, cfg: CfgNode, backbone: Network, data: LabelledSet) -> None:
    """Append the features of the images that have none."""
    transform = TRANSFORMS[cfg.LINEAR.TRANSFORM]
    size = cfg.LINEAR.IMAGE_SIZE
    missing = data.records[kept.done :]
    loader = image_loader(cfg, missing, lambda image, _: transform(image, size), batch_size=BATCH)
    with progress(f"features of {data.name}", "image", total=len(data.records), done=kept.done) as bar:
        for number, (batch, _) in enumerate(loader, start=1):
            kept.append(backbone.pooled(batch).cpu().numpy())
            bar.update(len(batch))
            if number % BATCHES_PER_SAVE == 0 or kept.is_complete:
                kept.save()


def images_key(records: Records) -> str:
    """A digest of the images: names, sizes and times of their files, places in shards, or pixels."""

    @functools.lru_cache(maxsize=1)  # the images of a shard follow one another
    def version(file_name: str) -> tuple[int, int] | None:
        if "://" in file_name:
            return None
        status = Path(file_name).stat()
        return status.st_size, status.st_mtime_ns

    digest = hashlib.sha256()
    for record in records:
        if "image" in record:
            digest.update(record["image"].tobytes())
        else:
            place = record.get("offset"), record.get("size")  # in a shard
            for file_name in files_of_record(record):
                digest.update(f"{file_name}\0{place}\0{version(file_name)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def labels_key(targets: np.ndarray) -> str:
    """A digest of the classes of images, as LabelledSet has them."""
    return hashlib.sha256(repr(targets.tolist()).encode()).hexdigest()
