"""Features of a data set, computed once, kept on disk by what they depend on, and completed after an interruption."""

import functools
import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, Subset
from tqdm import tqdm

from projects.common.frozen_backbone import FrozenBackbone
from revisit.data.reader import require_record
from revisit.data.workers import SignalSafeLoader
from revisit.evaluation.features import BATCH, TRANSFORMS
from revisit.files import written_whole

from detectron2.config import CfgNode
from detectron2.data import DatasetFromList

from .targets import Labelled, LabelledSet

BATCHES_PER_SAVE = 16  # what an interruption loses, at most

logger = logging.getLogger(__name__)


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


def cached_features(cfg: CfgNode, backbone: FrozenBackbone, data: LabelledSet) -> Labelled:
    """Average-pooled features of every image, (N, C) float32, and the targets.

    They are read from LINEAR.CACHE if they were made with the same weights, network, images and transform, and
    completed if that call was interrupted. Otherwise they are computed, and the log says how other features of the
    same data set differ.
    """
    folder = Path(cfg.LINEAR.CACHE or Path(cfg.OUTPUT_DIR) / "features")
    folder.mkdir(parents=True, exist_ok=True)
    name, records = data.name, data.records
    key = {
        "weights": weights_key(cfg),
        "network": _network_key(cfg),
        "images": images_key(records),
        "transform": f"{cfg.LINEAR.TRANSFORM} {cfg.LINEAR.IMAGE_SIZE} px",
    }
    stem = "".join(letter if letter.isalnum() else "_" for letter in name)
    path = folder / f"{stem}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]}"
    rows_file, state_file = path.with_suffix(".npy"), path.with_suffix(".json")
    state = _read_state(state_file) if rows_file.is_file() else None
    done = state["done"] if state else 0
    if done:
        logger.info(f"{done} features of {name} read from {rows_file}")
        rows = np.lib.format.open_memmap(rows_file, "r+")
    else:
        for file in sorted(folder.glob(f"{stem}-*.json")):
            if other := _read_state(file):
                differ = " and ".join(part for part in key if other["key"].get(part) != key[part])
                logger.info(f"{file.with_suffix('.npy')} was made with other {differ}: computing anew")
        logger.info(f"no features of {name} yet in {folder}")
        rows = np.lib.format.open_memmap(rows_file, "w+", np.float32, (len(records), backbone.channels))
    if done < len(records):
        transform = functools.partial(TRANSFORMS[cfg.LINEAR.TRANSFORM], size=cfg.LINEAR.IMAGE_SIZE)
        missing = Subset(RecordImages(records, transform), range(done, len(records)))
        loader = SignalSafeLoader(missing, num_workers=cfg.DATALOADER.NUM_WORKERS, batch_size=BATCH)
        with tqdm(total=len(records), initial=done, unit="image", desc=f"features of {name}") as bar:
            for number, (batch, _) in enumerate(loader, start=1):
                rows[done : done + len(batch)] = backbone.pooled(batch).cpu().numpy()
                done += len(batch)
                bar.update(len(batch))
                if number % BATCHES_PER_SAVE == 0 or done == len(records):
                    rows.flush()
                    with written_whole(state_file) as temporary:
                        temporary.write_text(json.dumps({"key": key, "done": done}))
    return np.asarray(rows), data.targets


def _read_state(state_file: Path) -> dict | None:
    try:
        state = json.loads(state_file.read_text())
        return {"key": dict(state["key"]), "done": int(state["done"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


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
