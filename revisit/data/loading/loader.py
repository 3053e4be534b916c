"""The data loaders, restartable at any iteration: uint8 batches of views, and of finetuning Detectron2's batches."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypedDict

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from revisit.data.augmentation_on_device import apply_looks
from revisit.data.deep_pixels import bit_depth
from revisit.data.images.reader import open_record, read_or_next
from revisit.data.loading.sampler import EpochBatchSampler, GroupedBatchSampler
from revisit.data.loading.workers import SignalSafeLoader, one_thread
from revisit.data.randomness import Stream, seed_global_generators
from revisit.data.sources.catalog import get_records
from revisit.data.sources.class_names import names_of
from revisit.data.sources.records import fingerprint, sample
from revisit.data.to_device import to_device
from revisit.data.views.mapper import ViewMapper, Views
from revisit.errors import expect

from detectron2.config import CfgNode
from detectron2.data import DatasetFromList, get_detection_dataset_dicts
from detectron2.data.build import trivial_batch_collator
from detectron2.utils import comm
from detectron2.utils.logger import log_first_n


class ViewBatch(TypedDict, total=False):
    """One process's share of a batch. Absent without small crops: ``small``; without classes: ``label``.

    What the method's ViewAnnotator adds is here by its names, (B, ...).
    """

    anchor: torch.Tensor  # (B, 3, H, W) uint8 RGB
    positive: torch.Tensor  # (B, 3, H, W) uint8 RGB
    small: torch.Tensor  # (B, N, 3, h, w) uint8 RGB
    anchor_looks: np.ndarray  # (B,) until ``with_looks``, where the device applies them; so positive_looks
    small_looks: np.ndarray  # (B, N)
    index: torch.Tensor  # (B,) int64, place in the data sets together
    label: torch.Tensor  # (B,) int64, for monitors alone
    num_fallbacks: int  # crops that missed their constraint
    read_errors: list[str]  # one message for each unreadable file, which a neighbour replaced


class ViewDataset(Dataset):
    """Views by (epoch, image index), with the class where ``labelled``.

    An unreadable image is replaced by the next readable one in the list.
    """

    def __init__(
        self,
        records: list[dict],
        mapper: ViewMapper,
        labelled: bool = False,
        bit_depth: int | None = None,
    ):
        self.records = DatasetFromList(records, copy=False)
        self._mapper = mapper
        self._labelled = labelled
        self._bit_depth = bit_depth

    def __len__(self) -> int:
        return len(self.records)

    def __getitems__(self, keys: list[tuple[int, int]]) -> ViewBatch:
        """A batch of the images of (epoch, index). Tensors are views of (..., H, W, 3) memory: channels-last."""
        tensors = {name: _empty((len(keys), *shape)) for name, shape in self._mapper.shapes.items()}
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        views, errors, labels = [], [], []
        for n, (epoch, index) in enumerate(keys):
            room = {name: array[n] for name, array in arrays.items()}
            record, of_image, failed = read_or_next(self.records, index, partial(self._views_of, epoch, index, room))
            errors += failed
            views.append(of_image)
            labels.append(record.get("label"))
        fallbacks = sum(of_image["boxes"].num_fallbacks for of_image in views)
        indices = torch.tensor([index for _, index in keys])
        batch = ViewBatch(index=indices, num_fallbacks=fallbacks, read_errors=errors)
        batch.update({name: tensor.movedim(-1, -3) for name, tensor in tensors.items()})
        for name in views[0]["annotations"]:
            batch[name] = torch.from_numpy(np.stack([of_image["annotations"][name] for of_image in views]))
        if self._mapper.looks_on_device:
            looks = (f"{name}_looks" for name in self._mapper.shapes)
            batch.update({name: np.stack([of_image[name] for of_image in views]) for name in looks})
        if self._labelled:
            batch["label"] = torch.tensor(labels)
        return batch

    def _views_of(self, epoch: int, index: int, room: dict[str, np.ndarray], record: dict) -> Views:
        picture = open_record(record, self._bit_depth)
        return self._mapper.of_picture(picture, epoch, index, room)


def _empty(shape: tuple[int, ...]) -> torch.Tensor:
    """uint8; in a worker in memory that it shares with the training process, which saves a copy."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    storage = torch.UntypedStorage._new_shared(math.prod(shape), device="cpu")
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, shape)


def with_looks(batch: ViewBatch, device: torch.device | str) -> ViewBatch:
    """The batch with its views on ``device``, given the looks that a worker has only drawn; it is changed in place."""
    for name in ("anchor", "positive", "small"):
        if (looks := batch.pop(f"{name}_looks", None)) is None:
            continue
        views = to_device(batch[name], device)
        shape = views.shape
        batch[name] = apply_looks(views.reshape(-1, *shape[-3:]), looks.reshape(-1)).view(shape)
    return batch


def core_rate(cfg: CfgNode, seconds: float = 1.0) -> tuple[float, int]:
    """Images that a worker makes views of in a second of its core, and of how many images of DATASETS.TRAIN that is.

    Up to 64 of them, spread evenly, for about ``seconds``. Waiting for the disk does not count.
    """
    records = sample([record for name in cfg.DATASETS.TRAIN for record in get_records(name)], 64)
    dataset = ViewDataset(records, ViewMapper.from_config(cfg), bit_depth=bit_depth(cfg))
    with one_thread():
        dataset.__getitems__([(0, 0)])  # the first one takes longer
        start = time.thread_time()
        for index in range(len(records)):
            dataset.__getitems__([(0, index)])
            if (spent := time.thread_time() - start) > seconds:
                break
    return (index + 1) / spent, index + 1


def _share(start_iteration: int) -> dict[str, int]:
    """The options of a sampler that say which part of which batches it gives."""
    return {"rank": comm.get_rank(), "world_size": comm.get_world_size(), "start_iteration": start_iteration}


class ResumableLoader:
    """Iterable over this process's ViewBatches, starting at ``start_iteration``.

    Workers start at the first batch that is asked for, so ``start_iteration`` may be set after construction
    (from a checkpoint), until then. ``last_batch`` is the batch that was handed out last. Looks that a worker has only
    drawn are the step's to give (``with_looks``).
    """

    last_batch: ViewBatch

    def __init__(self, cfg: CfgNode):
        sets = [get_records(name) for name in cfg.DATASETS.TRAIN]
        records = [record for records in sets for record in records]
        self.start_iteration = 0
        self.images = fingerprint(*sets, labels=False)
        self.num_images = len(records)
        self.iterations_per_epoch = self.num_images // cfg.SOLVER.IMS_PER_BATCH
        self._cfg = cfg
        # Two data sets may count different classes by the same numbers.
        labelled = len(cfg.DATASETS.TRAIN) == 1 and all("label" in record for record in records)
        mapper = ViewMapper.from_config(cfg)
        records = mapper.annotator.prepare(records)
        self._dataset = ViewDataset(records, mapper, labelled, bit_depth(cfg))

    def batch_of(self, iteration: int) -> ViewBatch:
        """This process's share of any batch, made anew."""
        return with_looks(self._dataset.__getitems__(next(iter(self._sampler(iteration)))), self._cfg.MODEL.DEVICE)

    def images_of(self, iteration: int) -> list[str]:
        """File names of this process's share of a batch, as the data set lists them."""
        keys = next(iter(self._sampler(iteration)))
        return [str(self._dataset.records[index].get("file_name", index)) for _, index in keys]

    def _sampler(self, start_iteration: int) -> EpochBatchSampler:
        batch, seed = self._cfg.SOLVER.IMS_PER_BATCH, self._cfg.SEED
        return EpochBatchSampler(self.num_images, batch, seed, **_share(start_iteration))

    def __iter__(self) -> Iterator[ViewBatch]:
        loader = SignalSafeLoader(
            self._dataset,
            batch_sampler=self._sampler(self.start_iteration),
            num_workers=self._cfg.DATALOADER.NUM_WORKERS,
            collate_fn=trivial_batch_collator,
        )
        for self.last_batch in loader:
            yield self.last_batch


class MappedRecords(Dataset):
    """Mapped records by (place in the run, record index); what the mapper draws depends on (seed, place) alone.

    As in pretraining, the next readable record stands in for one that cannot be read, which is logged once.
    """

    def __init__(self, records: list[dict], mapper: Callable[[dict], dict], seed: int):
        self._records = DatasetFromList(records, copy=False)
        self._mapper = mapper
        self._seed = seed

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, key: tuple[int, int]) -> dict:
        place, index = key

        def mapped(record: dict) -> dict:
            seed_global_generators(self._seed, Stream.FINETUNE_SAMPLE, place)
            return self._mapper(record)

        _, sample_of_run, failed = read_or_next(self._records, index, mapped)
        for problem in failed:
            message = f"unreadable image replaced by its neighbour: {problem}"
            log_first_n(logging.WARNING, message, name=__name__, key="message")
        return sample_of_run


class FinetuneLoader:
    """Iterable over this process's lists of mapped records, from ``start_iteration`` on, as ResumableLoader."""

    def __init__(self, cfg: CfgNode, mapper: Callable[[dict], dict]):
        name = cfg.DATALOADER.SAMPLER_TRAIN
        message = f"DATALOADER.SAMPLER_TRAIN is {name}: expected TrainingSampler, the one that resumes exactly"
        expect(name == "TrainingSampler", message)
        records = get_detection_dataset_dicts(
            cfg.DATASETS.TRAIN,
            filter_empty=cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS,
            min_keypoints=cfg.MODEL.ROI_KEYPOINT_HEAD.MIN_KEYPOINTS_PER_IMAGE if cfg.MODEL.KEYPOINT_ON else 0,
        )
        # Of all data sets together, as Detectron2 gives them; their classes are the first one's.
        self.images = fingerprint(records, classes=names_of(cfg.DATASETS.TRAIN[0]))
        grouping = cfg.DATALOADER.ASPECT_RATIO_GROUPING
        self._wide = [grouping and record["width"] > record["height"] for record in records]
        self._dataset = MappedRecords(records, mapper, cfg.SEED)
        self._cfg = cfg
        self.start_iteration = 0

    def __iter__(self) -> Iterator[list[dict]]:
        workers, size = self._cfg.DATALOADER.NUM_WORKERS, self._cfg.SOLVER.IMS_PER_BATCH // comm.get_world_size()
        sampler = GroupedBatchSampler(self._wide, size, self._cfg.SEED, **_share(self.start_iteration))
        yield from SignalSafeLoader(self._dataset, batch_sampler=sampler, num_workers=workers, collate_fn=list)
