"""Which images make up which batch: a function of (seed, iteration) alone."""

from collections.abc import Iterator

from revisit.randomness import Stream, counter_rng


class EpochBatchSampler:
    """Endless batches of (epoch, image index), from any iteration on.

    Every epoch is a fresh permutation by (seed, epoch), cut into global batches; the rest that does not
    fill a batch is dropped. Rank r takes the r-th part of each global batch, so the order of the data
    depends on neither the number of processes nor that of workers, and a run can start anywhere.
    """

    def __init__(
        self,
        num_images: int,
        global_batch: int,
        seed: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        start_iteration: int = 0,
    ):
        if global_batch % world_size:
            raise ValueError(f"a batch of {global_batch} does not divide by {world_size} processes")
        if num_images < global_batch:
            raise ValueError(f"{num_images} images do not fill one batch of {global_batch}")
        self.num_images = num_images
        self.global_batch = global_batch
        self.seed = seed
        self.iterations_per_epoch = num_images // global_batch
        self.start_iteration = start_iteration
        share = global_batch // world_size
        self._part = slice(rank * share, (rank + 1) * share)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch, step = divmod(self.start_iteration, self.iterations_per_epoch)
        while True:
            order = counter_rng(self.seed, Stream.SHUFFLE, epoch).permutation(self.num_images)
            batches = order[: self.iterations_per_epoch * self.global_batch].reshape(-1, self.global_batch)
            for batch in batches[step:]:
                yield [(epoch, int(index)) for index in batch[self._part]]
            epoch, step = epoch + 1, 0
