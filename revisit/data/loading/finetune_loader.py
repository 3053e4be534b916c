"""The loader of finetuning, restartable at any iteration: Detectron2's batches."""

import logging
from collections.abc import Callable, Iterator

from torch.utils.data import Dataset

from revisit.data.images.reader import read_or_next
from revisit.data.loading.sampler import GroupedBatchSampler, share_of_process
from revisit.data.loading.workers import SignalSafeLoader
from revisit.data.randomness import Stream, seed_global_generators
from revisit.data.sources.class_names import names_of
from revisit.data.sources.inspection import is_learned_from
from revisit.data.sources.records import fingerprint
from revisit.errors import expect
from revisit.keys import network_of

from detectron2.config import CfgNode
from detectron2.data import DatasetFromList, get_detection_dataset_dicts
from detectron2.utils import comm
from detectron2.utils.logger import log_first_n


class MappedRecords(Dataset):
    """Mapped records by (position in the run, record index); what the mapper draws depends on (seed, position) alone.

    As in pretraining, the next readable record stands in for one that cannot be read, which is logged once.
    """

    def __init__(self, records: list[dict], mapper: Callable[[dict], dict], seed: int):
        self._records = DatasetFromList(records, copy=False)
        self._mapper = mapper
        self._seed = seed

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, key: tuple[int, int]) -> dict:
        position, index = key

        def mapped(record: dict) -> dict:
            seed_global_generators(self._seed, Stream.FINETUNE_SAMPLE, position)
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
        records = get_detection_dataset_dicts(cfg.DATASETS.TRAIN, filter_empty=False)
        records = [record for record in records if is_learned_from(cfg, record)]
        # Of all data sets together, as Detectron2 gives them; their classes are the first one's.
        self.images = fingerprint(records, classes=names_of(cfg.DATASETS.TRAIN[0]))
        # Masks and depth name no size, and are cut to one.
        grouping = cfg.DATALOADER.ASPECT_RATIO_GROUPING and all("width" in record for record in records)
        self._wide = [grouping and record["width"] > record["height"] for record in records]
        self._dataset = network_of(cfg).training_samples(cfg, MappedRecords(records, mapper, cfg.SEED))
        self._cfg = cfg
        self.start_iteration = 0

    def __iter__(self) -> Iterator[list[dict]]:
        workers = self._cfg.DATALOADER.NUM_WORKERS
        size = self._cfg.SOLVER.IMS_PER_BATCH // comm.get_world_size()
        sampler = GroupedBatchSampler(self._wide, size, self._cfg.SEED, **share_of_process(self.start_iteration))
        yield from SignalSafeLoader(self._dataset, batch_sampler=sampler, num_workers=workers, collate_fn=list)
