"""The loader of pretraining, restartable at any iteration: uint8 batches of views."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TypedDict

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from revisit.compat.private_names import shared_bytes
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import open_record, read_or_next
from revisit.data.loading.sampler import EpochBatchSampler, Keys, share_of_process
from revisit.data.loading.upcoming import Batches, ReadsAhead, reader_of
from revisit.data.loading.workers import SignalSafeLoader
from revisit.data.sources.catalog import get_records
from revisit.data.sources.records import Records, fingerprint, labels_of
from revisit.data.sources.rows import joined
from revisit.data.views.annotation import Arrays
from revisit.data.views.mapper import ViewMapper, Views, training_mapper

from detectron2.config import CfgNode
from detectron2.data import DatasetFromList
from detectron2.data.build import trivial_batch_collator


class ViewBatch(TypedDict, total=False):
    """One process's share of a batch. Absent without small crops: ``small``; without classes: ``label``.

    What the method's ViewAnnotator adds is here by its names, (B, ...).
    """

    anchor: torch.Tensor  # (B, C, H, W) uint8: RGB, or the channels of the PixelFormat
    positive: torch.Tensor  # (B, C, H, W)
    small: torch.Tensor  # (B, N, C, h, w)
    deferred: Callable  # what the mapper leaves to the device, until ``finish``
    index: torch.Tensor  # (B,) int64, of the image that is shown, in the data sets together
    label: torch.Tensor  # (B,) int64, for monitors alone
    num_fallbacks: int  # crops that missed their constraint
    read_errors: list[str]  # one message for each unreadable file, which a neighbour replaced


class ViewDataset(Dataset):
    """Views by (epoch, image index), with the class where ``labelled``.

    An unreadable image is replaced by the next readable one in the list.
    """

    def __init__(self, records: Records, mapper: ViewMapper, pixels: PixelFormat, labelled: bool = False):
        # Of a list one array, which forked workers share; others are made of arrays.
        self.records = DatasetFromList(records, copy=False, serialize=isinstance(records, list))
        self._mapper = mapper
        self._labelled = labelled
        self._pixels = pixels
        self._reader: ReadsAhead | None = None
        self._make_reader: Callable[[Batches], ReadsAhead | None] | None = None
        self._sampler: Iterable[Keys] = ()

    def read_by(self, make: Callable[[Batches], ReadsAhead | None], sampler: Iterable[Keys]) -> None:
        """Let what ``make`` returns read what a worker's share of the sampler's batches needs, from the next one on."""
        self._reader, self._make_reader, self._sampler = None, make, sampler

    def __len__(self) -> int:
        return len(self.records)

    def __getitems__(self, keys: Keys) -> ViewBatch:
        """A batch of the images of (epoch, index). Tensors are views of (..., H, W, C) memory: channels-last."""
        self._begin(keys)
        tensors = {name: _empty((len(keys), *shape)) for name, shape in self._mapper.shapes.items()}
        views, labels, shown = [], [], []
        batch = ViewBatch(num_fallbacks=0, read_errors=[])
        for n, (epoch, index) in enumerate(keys):
            room = {name: tensor[n].numpy() for name, tensor in tensors.items()}
            record, of_image, failed = read_or_next(self.records, index, partial(self._views_of, epoch, index, room))
            batch["read_errors"] += failed
            batch["num_fallbacks"] += of_image["boxes"].num_fallbacks
            views.append(of_image)
            labels.append(record.get("label"))
            shown.append((index + len(failed)) % len(self.records))
        batch["index"] = torch.tensor(shown)
        batch.update({name: tensor.movedim(-1, -3) for name, tensor in tensors.items()})
        for name in views[0]["annotations"]:
            batch[name] = torch.from_numpy(np.stack([of_image["annotations"][name] for of_image in views]))
        if deferred := self._mapper.deferred(views):
            batch["deferred"] = deferred
        if self._labelled:
            batch["label"] = torch.tensor(labels)
        return batch

    def _begin(self, keys: Keys) -> None:
        """Have the bytes of a batch at hand, where something reads them ahead."""
        if self._make_reader:
            self._reader = self._make_reader(self._own_batches())
            self._make_reader = None
        if self._reader:
            self._reader.begin([self.records[index] for _, index in keys])

    def _own_batches(self) -> Batches:
        """Records of the batches that this worker makes: they take turns."""
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for keys in islice(self._sampler, first, None, step):
            yield [self.records[index] for _, index in keys]

    def _views_of(self, epoch: int, index: int, room: Arrays, record: dict) -> Views:
        return self._mapper.of_picture(open_record(record, self._pixels), epoch, index, room)


def _empty(shape: tuple[int, ...]) -> torch.Tensor:
    """uint8; in a worker in memory that it shares with the training process, which saves a copy."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    return shared_bytes(shape)


def finish(batch: ViewBatch, device: torch.device | str) -> ViewBatch:
    """The batch, changed in place, after the device has done what the mapper has left to it."""
    if deferred := batch.pop("deferred", None):
        batch.update(deferred(batch, device))
    return batch


class ResumableLoader:
    """Iterable over this process's ViewBatches, starting at ``start_iteration``.

    Workers start at the first batch that is asked for, so ``start_iteration`` may be set after construction
    (from a checkpoint), until then. ``last_batch`` is the batch that was handed out last. What the mapper has left to
    the device is the step's to do (``finish``).
    """

    last_batch: ViewBatch

    def __init__(self, cfg: CfgNode):
        sets = [get_records(name) for name in cfg.DATASETS.TRAIN]
        records = joined(sets)
        self.start_iteration = 0
        self.images = fingerprint(*sets, labels=False)
        self.num_images = len(records)
        self.iterations_per_epoch = self.num_images // cfg.SOLVER.IMS_PER_BATCH
        self._cfg = cfg
        # Two data sets may count different classes by the same numbers.
        labelled = len(sets) == 1 and labels_of(records) is not None
        mapper = training_mapper(cfg)
        self._dataset = ViewDataset(mapper.annotator.prepare(records), mapper, pixel_format(cfg), labelled)

    def batch_of(self, iteration: int) -> ViewBatch:
        """This process's share of any batch, made again."""
        keys = next(iter(self._sampler(iteration)))
        return finish(self._dataset.__getitems__(keys), self._cfg.MODEL.DEVICE)

    def images_of(self, iteration: int) -> list[str]:
        """File names of this process's share of a batch, as the data set lists them."""
        keys = next(iter(self._sampler(iteration)))
        return [str(self._dataset.records[index].get("file_name", index)) for _, index in keys]

    def _sampler(self, start_iteration: int) -> EpochBatchSampler:
        batch_size = self._cfg.SOLVER.IMS_PER_BATCH
        return EpochBatchSampler(self.num_images, batch_size, self._cfg.SEED, **share_of_process(start_iteration))

    def __iter__(self) -> Iterator[ViewBatch]:
        sampler = self._sampler(self.start_iteration)
        self._dataset.read_by(partial(reader_of, self._cfg), sampler)
        loader = SignalSafeLoader(
            self._dataset,
            batch_sampler=sampler,
            num_workers=self._cfg.DATALOADER.NUM_WORKERS,
            collate_fn=trivial_batch_collator,
        )
        for self.last_batch in loader:
            yield self.last_batch
