"""A linear layer trained by SGD on random crops, through the frozen network (MoCo's protocol)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from projects.common.feature_cache import images_key, weights_key
from projects.common.frozen_backbone import FrozenBackbone
from revisit.data.crops import random_resized_crop
from revisit.data.mapper import require_record
from revisit.data.resize import crop_and_resize
from revisit.data.workers import start_worker
from revisit.evaluation.features import center_crop
from revisit.files import written_whole
from revisit.randomness import Stream, counter_rng

from detectron2.config import CfgNode
from detectron2.data import DatasetFromList

SCALE = (0.08, 1.0)  # share of the image area
INIT_STD = 0.01
STATE = "sgd.pth"

logger = logging.getLogger(__name__)


class Views(Dataset):
    """A random crop of each image, flipped half of the time: a function of seed, epoch and image alone."""

    def __init__(self, records: list[dict], targets: np.ndarray, size: int, seed: int, epoch: int):
        self._records = DatasetFromList(records, copy=False)  # one buffer, which workers share
        self._targets, self._size = targets, size
        self._seed, self._epoch = seed, epoch

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rng = counter_rng(self._seed, Stream.VIEWS, self._epoch, index)
        image = require_record(self._records[index])
        view = crop_and_resize(image, random_resized_crop(*image.shape[:2], SCALE, rng), self._size)
        view = cv2.flip(view, 1) if rng.random() < 0.5 else view
        return torch.from_numpy(view).permute(2, 0, 1), int(self._targets[index])


class Crops(Dataset):
    """The central crop of each image."""

    def __init__(self, records: list[dict], targets: np.ndarray, size: int):
        self._records = DatasetFromList(records, copy=False)  # one buffer, which workers share
        self._targets, self._size = targets, size

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = center_crop(require_record(self._records[index]), self._size)
        return torch.from_numpy(image).permute(2, 0, 1), int(self._targets[index])


class LinearTraining:
    """Trains and judges the layer; what it has done is kept in FOLDER/sgd.pth after every epoch.

    Args:
        train, test: records and (N,) int64 classes.
    """

    def __init__(
        self,
        cfg: CfgNode,
        backbone: FrozenBackbone,
        train: tuple[list[dict], np.ndarray],
        test: tuple[list[dict], np.ndarray],
    ):
        self._cfg, self._backbone, self._train, self._test = cfg, backbone, train, test
        self.layer = nn.Linear(backbone.channels, int(train[1].max()) + 1).to(cfg.MODEL.DEVICE)
        generator = torch.Generator().manual_seed(cfg.SEED)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(self.layer.weight.shape, generator=generator) * INIT_STD)
            self.layer.bias.zero_()
        solver = cfg.SOLVER
        self._optimizer = torch.optim.SGD(
            self.layer.parameters(), solver.BASE_LR, momentum=solver.MOMENTUM, weight_decay=solver.WEIGHT_DECAY
        )
        self._schedule = torch.optim.lr_scheduler.MultiStepLR(
            self._optimizer, list(solver.STEP_EPOCHS), gamma=solver.GAMMA
        )
        self.history: list[dict] = []  # of each epoch: loss, top1, top5

    def run(self, folder: Path) -> list[dict]:
        """All epochs that are not done yet; the history of all."""
        self._resume(folder / STATE)
        frozen = {key: value.clone() for key, value in self._backbone.state_dict().items()}
        for epoch in range(len(self.history), self._cfg.SOLVER.EPOCHS):
            loss = self._train_epoch(epoch)
            if epoch == 0:
                changed = [
                    key for key, value in self._backbone.state_dict().items() if not torch.equal(value, frozen[key])
                ]
                assert not changed, f"the frozen backbone has changed: {', '.join(changed[:3])}"
            self.history.append({"loss": round(loss, 4), **self.evaluate()})
            logger.info(f"epoch {epoch + 1} of {self._cfg.SOLVER.EPOCHS}: {json.dumps(self.history[-1])}")
            self._save(folder / STATE)
        return self.history

    def _train_epoch(self, epoch: int) -> float:
        cfg, (records, targets) = self._cfg, self._train
        order = counter_rng(cfg.SEED, Stream.SHUFFLE, epoch).permutation(len(records)).tolist()
        views = Views(records, targets, cfg.LINEAR.IMAGE_SIZE, cfg.SEED, epoch)
        loader = self._loader(views, sampler=order, batch_size=cfg.SOLVER.IMS_PER_BATCH)
        total = 0.0
        for images, labels in tqdm(loader, unit="batch", desc=f"epoch {epoch + 1}"):
            labels = labels.to(cfg.MODEL.DEVICE)
            loss = F.cross_entropy(self.layer(self._features(images)), labels)
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            total += loss.item() * len(labels)
        self._schedule.step()
        return total / len(records)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Percent: ``top1`` and ``top5`` of the test images."""
        records, targets = self._test
        hits = torch.zeros(2)
        loader = self._loader(
            Crops(records, targets, self._cfg.LINEAR.IMAGE_SIZE), batch_size=self._cfg.SOLVER.IMS_PER_BATCH
        )
        for images, labels in loader:
            logits = self.layer(self._features(images)).cpu()
            best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
            hits += torch.stack([best[:, 0].sum(), best.any(dim=1).sum()])
        top1, top5 = (round(100 * float(count) / len(records), 2) for count in hits)
        return {"top1": top1, "top5": top5}

    def _features(self, images: Tensor) -> Tensor:
        return self._backbone(images).mean(dim=(2, 3))

    def _loader(self, data: Dataset, **options: object) -> DataLoader:
        workers = self._cfg.DATALOADER.NUM_WORKERS
        return DataLoader(data, num_workers=workers, worker_init_fn=start_worker, **options)

    def _state(self) -> dict[str, Callable]:
        return {"layer": self.layer, "optimizer": self._optimizer, "schedule": self._schedule}

    def _save(self, path: Path) -> None:
        content = {name: part.state_dict() for name, part in self._state().items()}
        with written_whole(path) as temporary:
            torch.save({**content, "history": self.history, "recipe": self._recipe()}, temporary)

    def _resume(self, path: Path) -> None:
        if not path.is_file():
            return
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if saved["recipe"] != self._recipe():
            logger.info(f"{path} was trained with other weights, data or settings: starting anew")
            return
        for name, part in self._state().items():
            part.load_state_dict(saved[name])
        self.history = saved["history"]
        logger.info(f"going on after epoch {len(self.history)} of {path}")

    def _recipe(self) -> str:
        """All that decides the result, as text."""
        kept = self._cfg.clone()
        kept.defrost()
        kept.OUTPUT_DIR = ""
        kept.DATALOADER.NUM_WORKERS = 0
        images = " ".join(images_key(records) for records, _ in (self._train, self._test))
        return f"{kept.dump()}\nweights {weights_key(self._cfg)}\nimages {images}"
