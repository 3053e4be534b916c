"""The pretraining data loader: uint8 batches of views, restartable at any iteration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from revisit.data.catalog import get_records
from revisit.data.images import UnreadableImageError
from revisit.data.mapper import ViewMapper, read_record
from revisit.data.sampler import EpochBatchSampler
from revisit.data.workers import start_worker

from detectron2.config import CfgNode
from detectron2.data import DatasetFromList
from detectron2.utils import comm

MAX_REPLACEMENTS = 20


class ViewBatch(TypedDict, total=False):
    """One process's share of a batch. Absent without small crops: ``small``; without classes: ``label``."""

    anchor: torch.Tensor  # (B, 3, H, W) uint8 RGB
    positive: torch.Tensor  # (B, 3, H, W) uint8 RGB
    small: torch.Tensor  # (B, N, 3, h, w) uint8 RGB
    label: torch.Tensor  # (B,) int64, for monitors alone
    num_fallbacks: int  # crops that missed their constraint
    read_errors: list[str]  # one message for each unreadable file, which a neighbour replaced


class ViewDataset(Dataset):
    """Views by (epoch, image index), with the class where ``labelled``.

    An unreadable image is replaced by the next readable one in the list.
    """

    def __init__(self, records: list[dict], mapper: ViewMapper, labelled: bool = False):
        self._records = DatasetFromList(records, copy=False)
        self._mapper = mapper
        self._labelled = labelled

    def __len__(self) -> int:
        return len(self._records)

    def record(self, index: int) -> dict:
        """What the data set's list says of an image."""
        return self._records[index]

    def __getitem__(self, key: tuple[int, int]) -> dict:
        epoch, index = key
        errors = []
        for step in range(min(MAX_REPLACEMENTS, len(self))):
            record = self._records[(index + step) % len(self)]
            try:
                image = read_record(record)
            except UnreadableImageError as error:
                errors.append(str(error))
                continue
            label = {"label": record["label"]} if self._labelled else {}
            return {**self._mapper(image, epoch, index), **label, "read_errors": errors}
        raise UnreadableImageError(f"{len(errors)} images in a row cannot be read, the first: {errors[0]}")


def collate_views(samples: list[dict]) -> ViewBatch:
    """Stack samples of ViewDataset. The tensors are views of (..., H, W, 3) memory: channels-last."""
    batch = ViewBatch(
        num_fallbacks=sum(sample["boxes"].num_fallbacks for sample in samples),
        read_errors=[error for sample in samples for error in sample["read_errors"]],
    )
    for name in ("anchor", "positive", "small"):
        if name in samples[0]:
            stacked = torch.from_numpy(np.stack([sample[name] for sample in samples]))
            batch[name] = stacked.movedim(-1, -3)
    if "label" in samples[0]:
        batch["label"] = torch.tensor([sample["label"] for sample in samples])
    return batch


class ResumableLoader:
    """Iterable over this process's ViewBatches, starting at ``start_iteration``.

    Workers start at the first batch that is asked for, so ``start_iteration`` may be set after construction
    (when a checkpoint has told it), until then. ``last_batch`` is the batch that was handed out last.
    """

    last_batch: ViewBatch

    def __init__(self, cfg: CfgNode):
        records = [record for name in cfg.DATASETS.TRAIN for record in get_records(name)]
        self.start_iteration = 0
        self.num_images = len(records)
        self.iterations_per_epoch = self.num_images // cfg.SOLVER.IMS_PER_BATCH
        self._cfg = cfg
        # Two data sets may count different classes by the same numbers.
        labelled = len(cfg.DATASETS.TRAIN) == 1 and all("label" in record for record in records)
        self._dataset = ViewDataset(records, ViewMapper.from_config(cfg), labelled)

    def images_of(self, iteration: int) -> list[str]:
        """File names of this process's share of a batch, as the data set lists them."""
        keys = next(iter(self._sampler(iteration)))
        return [str(self._dataset.record(index).get("file_name", index)) for _, index in keys]

    def _sampler(self, start_iteration: int) -> EpochBatchSampler:
        return EpochBatchSampler(
            self.num_images,
            self._cfg.SOLVER.IMS_PER_BATCH,
            self._cfg.SEED,
            rank=comm.get_rank(),
            world_size=comm.get_world_size(),
            start_iteration=start_iteration,
        )

    def __iter__(self) -> Iterator[ViewBatch]:
        cfg = self._cfg
        loader = DataLoader(
            self._dataset,
            batch_sampler=self._sampler(self.start_iteration),
            num_workers=cfg.DATALOADER.NUM_WORKERS,
            collate_fn=collate_views,
            worker_init_fn=start_worker,
            pin_memory=torch.cuda.is_available(),
        )
        for self.last_batch in loader:
            yield self.last_batch
