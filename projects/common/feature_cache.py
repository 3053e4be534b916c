"""Features of a data set, computed once, kept on disk by what they depend on, and completed after an interruption."""

import functools
import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset
from tqdm import tqdm

from projects.common.frozen_backbone import FrozenBackbone
from revisit.data.reader import require_record
from revisit.data.workers import SignalSafeLoader
from revisit.files import written_whole

from detectron2.config import CfgNode
from detectron2.data import DatasetFromList

BATCH = 64
BATCHES_PER_SAVE = 16  # what an interruption loses, at most

logger = logging.getLogger(__name__)


class Transform(NamedTuple):
    """From an image to a network's input, with a name that determines it."""

    name: str
    apply: Callable[[np.ndarray], np.ndarray]  # (H, W, 3) uint8 RGB -> (size, size, 3)


class RecordImages(Dataset):
    """Each image as (3, size, size) uint8, and its index."""

    def __init__(self, records: list[dict], transform: Callable[[np.ndarray], np.ndarray]):
        self._records = DatasetFromList(records, copy=False)  # one buffer, which workers share
        self._transform = transform

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.view(require_record(self._records[index]), index)
        return torch.from_numpy(image).permute(2, 0, 1), index

    def view(self, image: np.ndarray, index: int) -> np.ndarray:
        """What the network sees of the (H, W, 3) image at ``index``."""
        return self._transform(image)


def image_loader(cfg: CfgNode, images: Dataset, **options: object) -> DataLoader:
    """Batches of ``images``, in order unless ``options`` say otherwise."""
    return SignalSafeLoader(images, num_workers=cfg.DATALOADER.NUM_WORKERS, **options)


def cached_features(
    folder: Path, cfg: CfgNode, backbone: FrozenBackbone, dataset: str, records: list[dict], transform: Transform
) -> np.ndarray:
    """Average-pooled features of every record, (N, C) float32, in their order.

    They are read from ``folder`` if they were made with the same weights, network, images and transform, and
    completed if that call was interrupted. Otherwise they are computed, and the log says how other features of the
    same data set differ.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = {
        "weights": weights_key(cfg),
        "network": _network_key(cfg),
        "images": images_key(records),
        "transform": transform.name,
    }
    stem = "".join(letter if letter.isalnum() else "_" for letter in dataset)
    path = folder / f"{stem}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]}"
    rows_file, state_file = path.with_suffix(".npy"), path.with_suffix(".json")
    state = _read_state(state_file) if rows_file.is_file() else None
    done = state["done"] if state else 0
    if done:
        logger.info(f"{done} features of {dataset} read from {rows_file}")
        rows = np.lib.format.open_memmap(rows_file, "r+")
    else:
        _say_what_differs(folder, stem, key, dataset)
        rows = np.lib.format.open_memmap(rows_file, "w+", np.float32, (len(records), backbone.channels))
    if done < len(records):
        missing = Subset(RecordImages(records, transform.apply), range(done, len(records)))
        loader = image_loader(cfg, missing, batch_size=BATCH)
        with tqdm(total=len(records), initial=done, unit="image", desc=f"features of {dataset}") as bar:
            for number, (batch, _) in enumerate(loader, start=1):
                rows[done : done + len(batch)] = backbone.pooled(batch).cpu().numpy()
                done += len(batch)
                bar.update(len(batch))
                if number % BATCHES_PER_SAVE == 0 or done == len(records):
                    rows.flush()
                    with written_whole(state_file) as temporary:
                        temporary.write_text(json.dumps({"key": key, "done": done}))
    return rows


def _read_state(state_file: Path) -> dict | None:
    try:
        state = json.loads(state_file.read_text())
        return {"key": dict(state["key"]), "done": int(state["done"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _say_what_differs(folder: Path, stem: str, key: dict, dataset: str) -> None:
    for file in sorted(folder.glob(f"{stem}-*.json")):
        if state := _read_state(file):
            other = [name for name in key if state["key"].get(name) != key[name]]
            logger.info(f"{file.with_suffix('.npy')} was made with other {' and '.join(other)}: computing anew")
    logger.info(f"no features of {dataset} yet in {folder}")


def weights_key(cfg: CfgNode) -> str:
    """What determines the tensors of a FrozenBackbone: a digest of the file, and the seed where tensors are drawn."""
    drawn = f"SEED {cfg.SEED}" if not cfg.MODEL.WEIGHTS or cfg.MODEL.ALLOW_PARTIAL_BACKBONE else ""
    if not cfg.MODEL.WEIGHTS:
        return drawn
    with open(cfg.MODEL.WEIGHTS, "rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()} {drawn}".strip()


def images_key(records: list[dict]) -> str:
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
            digest.update(f"{record['file_name']}\0{place}\0{version(record['file_name'])}\n".encode())
    return digest.hexdigest()


def _network_key(cfg: CfgNode) -> str:
    model = cfg.MODEL
    parts = (model.BACKBONE.NAME, model.RESNETS.dump(), model.PIXEL_MEAN, model.PIXEL_STD, cfg.INPUT.FORMAT)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()
