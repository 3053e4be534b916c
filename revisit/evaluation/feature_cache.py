"""Features of a data set, computed once: kept on disk with what they depend on, and completed after an interruption."""

from __future__ import annotations

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

from revisit.checkpoint.flags import flags_of
from revisit.data.images import require_image
from revisit.data.loader import limit_worker_threads
from revisit.files import written_whole
from revisit.modeling.frozen import FrozenBackbone

from detectron2.config import CfgNode

BATCH = 64
BATCHES_PER_SAVE = 16  # what an interruption loses, at most

logger = logging.getLogger(__name__)


class Transform(NamedTuple):
    """From an image to a network's input, by a name that the cache remembers."""

    name: str
    apply: Callable[[np.ndarray], np.ndarray]  # (H, W, 3) uint8 RGB -> (size, size, 3)


class _Images(Dataset):
    def __init__(self, records: list[dict], transform: Transform):
        self._records, self._transform = records, transform

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> torch.Tensor:
        record = self._records[index]
        image = record["image"] if "image" in record else require_image(record["file_name"])
        return torch.from_numpy(self._transform.apply(image)).permute(2, 0, 1)


def cached_features(
    folder: Path, cfg: CfgNode, backbone: FrozenBackbone, dataset: str, records: list[dict], transform: Transform
) -> np.ndarray:
    """Average-pooled features of the backbone's only map for every record, (N, C) float32, in their order.

    They are read from ``folder`` where they were made with the same weights, images and transform; otherwise they are
    made (anew), and the log says so. What an interrupted call left is completed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = {
        "weights": _weights_key(cfg),
        "images": _images_key(records),
        "transform": transform.name,
        "network": {**flags_of(cfg), "out_features": list(cfg.MODEL.RESNETS.OUT_FEATURES)},
    }
    stem = "".join(letter if letter.isalnum() else "_" for letter in f"{dataset}-{transform.name}")
    rows_file, state_file = folder / f"{stem}.npy", folder / f"{stem}.json"
    done = _rows_done(rows_file, state_file, key)
    (channels,) = {shape.channels for shape in backbone.backbone.output_shape().values()}
    shape = (len(records), channels)
    rows = np.lib.format.open_memmap(rows_file, "r+" if done else "w+", np.float32, None if done else shape)
    if done < len(records):
        _extract(rows, done, backbone, _Images(records, transform), cfg.DATALOADER.NUM_WORKERS, dataset,
                 lambda count: _write_state(state_file, key, count))  # fmt: skip
    return rows


def _extract(
    rows: np.ndarray,
    done: int,
    backbone: FrozenBackbone,
    images: Dataset,
    num_workers: int,
    name: str,
    save: Callable[[int], None],
) -> None:
    loader = DataLoader(
        Subset(images, range(done, len(images))),
        batch_size=BATCH,
        num_workers=num_workers,
        worker_init_fn=limit_worker_threads,
    )
    with tqdm(total=len(images), initial=done, unit="image", desc=f"features of {name}") as bar:
        for number, batch in enumerate(loader, start=1):
            (maps,) = backbone(batch).values()
            rows[done : done + len(batch)] = maps.mean(dim=(2, 3)).cpu().numpy()
            done += len(batch)
            bar.update(len(batch))
            if number % BATCHES_PER_SAVE == 0 or done == len(images):
                rows.flush()
                save(done)


def _rows_done(rows_file: Path, state_file: Path, key: dict) -> int:
    """How many rows of a cache can be used; 0 where there is none, or it was made with something else."""
    if not rows_file.is_file() or not state_file.is_file():
        return 0
    try:
        state = json.loads(state_file.read_text())
        other = [name for name in key if state["key"][name] != key[name]]
        done = int(state["done"])
    except (ValueError, KeyError, TypeError):
        other, done = ["unreadable state"], 0
    if other:
        logger.info(f"{rows_file} was made with other {' and '.join(other)}: computing it anew")
        return 0
    logger.info(f"{done} features read from {rows_file}")
    return done


def _write_state(path: Path, key: dict, done: int) -> None:
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps({"key": key, "done": done}))


def _weights_key(cfg: CfgNode) -> str:
    if not cfg.MODEL.WEIGHTS:
        return f"random, SEED {cfg.SEED}"
    with open(cfg.MODEL.WEIGHTS, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _images_key(records: list[dict]) -> str:
    """A digest of which images there are: names, sizes and times of files, or pixels."""
    digest = hashlib.sha256()
    for record in records:
        if "image" in record:
            digest.update(record["image"].tobytes())
        else:
            status = Path(record["file_name"]).stat()
            digest.update(f"{record['file_name']}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
