"""Which images make up which batch: a function of (seed, iteration) alone."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import count

from revisit.data.loading.permutation import draw_order
from revisit.data.randomness import Stream, counter_rng

from detectron2.utils import comm

Keys = list[tuple[int, int]]  # of a batch: (epoch, image index), or (position in the run, record index)


def share_of_process(start_iteration: int) -> dict[str, int]:
    """The options of a sampler that say which part of which batches this process reads."""
    return {"rank": comm.get_rank(), "world_size": comm.get_world_size(), "start_iteration": start_iteration}


@dataclass(frozen=True)
class _Share:
    """Which part of which batches a process reads: see share_of_process."""

    _: KW_ONLY
    rank: int = 0
    world_size: int = 1
    start_iteration: int = 0


@dataclass(frozen=True)
class EpochBatchSampler(_Share):
    """Endless batches of (epoch, image index), from any iteration on.

    Every epoch is a fresh permutation by (seed, epoch), cut into global batches; the rest that does not
    fill a batch is dropped. Rank r takes the r-th part of each global batch, so the order of the data
    depends on neither the number of processes nor that of workers, and a run can start anywhere. Of more than
    ``permutation.MOST_DRAWN`` images no process holds the order.
    """

    num_images: int
    global_batch: int
    seed: int

    def __post_init__(self):
        if self.global_batch % self.world_size:
            raise ValueError(f"a batch of {self.global_batch} does not divide by {self.world_size} processes")
        if self.num_images < self.global_batch:
            raise ValueError(f"{self.num_images} images do not fill one batch of {self.global_batch}")

    @property
    def iterations_per_epoch(self) -> int:
        """How many batches an epoch fills."""
        return self.num_images // self.global_batch

    def __iter__(self) -> Iterator[Keys]:
        share = self.global_batch // self.world_size
        epoch, step = divmod(self.start_iteration, self.iterations_per_epoch)
        while True:
            order = draw_order(self.num_images, counter_rng(self.seed, Stream.SHUFFLE, epoch))
            for batch in range(step, self.iterations_per_epoch):
                start = batch * self.global_batch + self.rank * share
                yield [(epoch, index) for index in order[start : start + share].tolist()]
            epoch, step = epoch + 1, 0


@dataclass(frozen=True)
class GroupedBatchSampler(_Share):
    """Endless batches of (position in the run, record index) of one process, from any iteration on.

    As Detectron2's TrainingSampler and AspectRatioGroupedDataset: permutations of the data set, by (seed, epoch), one
    after the other. Rank r of R takes the positions r, r + R, ... of them. Where ``wide`` tells records apart, a batch
    holds either wide images or others. Unlike theirs, the same whenever it is run and with any number of workers.

    Args:
        wide: for every record whether it goes with the wide ones.
        batch_size: of this process.
    """

    wide: list[bool]
    batch_size: int
    seed: int

    def __iter__(self) -> Iterator[Keys]:
        groups: dict[bool, Keys] = {True: [], False: []}
        made = 0
        for position, index in self._positions():
            group = groups[self.wide[index]]
            group.append((position, index))
            if len(group) == self.batch_size:
                if made >= self.start_iteration:
                    yield group.copy()
                made += 1
                group.clear()

    def _positions(self) -> Iterator[tuple[int, int]]:
        num_records = len(self.wide)
        for epoch in count():
            order = counter_rng(self.seed, Stream.FINETUNE_ORDER, epoch).permutation(num_records).tolist()
            first = epoch * num_records
            for n in range((self.rank - first) % self.world_size, num_records, self.world_size):
                yield first + n, order[n]
