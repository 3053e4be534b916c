"""The loader of finetuning: Detectron2's batches of mapped records, restartable at any iteration."""

from collections.abc import Callable, Iterator
from itertools import count

from torch.utils.data import Dataset

from revisit.data.workers import SignalSafeLoader
from revisit.errors import UserError
from revisit.randomness import Stream, counter_rng, seed_global_generators

from detectron2.config import CfgNode
from detectron2.data import DatasetFromList, get_detection_dataset_dicts
from detectron2.utils import comm


class GroupedBatchSampler:
    """Endless batches of (place in the run, record index) of one process, from any iteration on.

    As Detectron2's TrainingSampler and AspectRatioGroupedDataset: permutations of the data set, by (seed, epoch), one
    after the other; of their places, rank r of R takes r, r + R, ...; and where ``wide`` tells records apart, a batch
    holds either wide images or others. Unlike theirs, the same whenever it is run and with any number of workers.

    Args:
        wide: for every record whether it goes with the wide ones.
        batch_size: of this process.
    """

    def __init__(
        self,
        wide: list[bool],
        batch_size: int,
        seed: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        start_iteration: int = 0,
    ):
        self._wide = wide
        self._batch_size = batch_size
        self._seed = seed
        self._rank, self._world_size = rank, world_size
        self._start = start_iteration

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        groups: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        made = 0
        for place, index in self._places():
            group = groups[self._wide[index]]
            group.append((place, index))
            if len(group) == self._batch_size:
                if made >= self._start:
                    yield group.copy()
                made += 1
                group.clear()

    def _places(self) -> Iterator[tuple[int, int]]:
        num_records = len(self._wide)
        for epoch in count():
            order = counter_rng(self._seed, Stream.FINETUNE_ORDER, epoch).permutation(num_records).tolist()
            first = epoch * num_records
            for n in range((self._rank - first) % self._world_size, num_records, self._world_size):
                yield first + n, order[n]


class MappedRecords(Dataset):
    """Mapped records by (place in the run, record index); what the mapper draws depends on (seed, place) alone."""

    def __init__(self, records: list[dict], mapper: Callable[[dict], dict], seed: int):
        self._records = DatasetFromList(records, copy=False)
        self._mapper = mapper
        self._seed = seed

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, key: tuple[int, int]) -> dict:
        place, index = key
        seed_global_generators(self._seed, Stream.FINETUNE_SAMPLE, place)
        return self._mapper(self._records[index])


class FinetuneLoader:
    """Iterable over this process's lists of mapped records, starting at ``start_iteration``.

    As with ResumableLoader, that may be set until the first batch is asked for.

    Raises:
        UserError: a sampler other than TrainingSampler, which alone can go on where it stopped.
    """

    def __init__(self, cfg: CfgNode, mapper: Callable[[dict], dict]):
        if cfg.DATALOADER.SAMPLER_TRAIN != "TrainingSampler":
            raise UserError(
                f"DATALOADER.SAMPLER_TRAIN is {cfg.DATALOADER.SAMPLER_TRAIN}: expected TrainingSampler, the one that "
                "resumes exactly"
            )
        records = get_detection_dataset_dicts(
            cfg.DATASETS.TRAIN,
            filter_empty=cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS,
            min_keypoints=cfg.MODEL.ROI_KEYPOINT_HEAD.MIN_KEYPOINTS_PER_IMAGE if cfg.MODEL.KEYPOINT_ON else 0,
        )
        grouping = cfg.DATALOADER.ASPECT_RATIO_GROUPING
        self._wide = [grouping and record["width"] > record["height"] for record in records]
        self._dataset = MappedRecords(records, mapper, cfg.SEED)
        self._cfg = cfg
        self.start_iteration = 0

    def __iter__(self) -> Iterator[list[dict]]:
        cfg = self._cfg
        sampler = GroupedBatchSampler(
            self._wide,
            cfg.SOLVER.IMS_PER_BATCH // comm.get_world_size(),
            cfg.SEED,
            rank=comm.get_rank(),
            world_size=comm.get_world_size(),
            start_iteration=self.start_iteration,
        )
        yield from SignalSafeLoader(
            self._dataset,
            batch_sampler=sampler,
            num_workers=cfg.DATALOADER.NUM_WORKERS,
            collate_fn=list,
        )
