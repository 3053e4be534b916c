"""What a pretraining on many GPUs sends, reads, keeps and costs: one formula each (docs/results/scale.md).

P processes, one a GPU, take b of N images each in a step; an image has s bytes in the store. The tests hold every
formula against what real processes do.
"""

from math import exp, sqrt
from statistics import NormalDist, fmean
from typing import NamedTuple

FLOAT, INDEX = 4, 8  # bytes of a float32 and of an int64
INDEX_ROW = 16  # bytes of an image in the index of its shards (projects/LargeData/shard_index.py)
POINTS = 10_000  # of a quadrature
DRAWN_ORDER = 2**24  # images whose order is an array; that of more is computed (revisit/data/loading/permutation.py)


class Sizes(NamedTuple):
    """What a recipe has, of one process."""

    images: int  # b
    view_bytes: int  # of all views of an image
    anchor_bytes: int  # 3 H^2: of the view that the momentum encoder sees, uint8
    key_bytes: int  # 4 (C + Cg): of an image's rows in all rings
    trained: int  # W, parameters
    channels: int  # c, of all batch norms of an encoder together
    forward_passes: int  # of an encoder in a step, in training mode
    backward_passes: int
    pool: int  # p, processes that share batch statistics
    shuffles: bool  # whether anchors are encoded by other processes
    checkpoint_bytes: int


def step_traffic(sizes: Sizes, processes: int) -> dict[str, float]:
    """Bytes that a process receives in a step, the mean over processes, by what they are; it sends as many.

        anchors           (P - 1) / P * b * 3 H^2                each moves once, as uint8
        keys              (P - 1) * b * 4 (C + Cg)               an all-gather
        gradients         2 (P - 1) / P * 4 W                    a ring's all-reduce, in float32
        batch statistics  8 c (p - 1) (forward passes + 2 / p * backward passes)

    Mean and variance of every channel are gathered forward, two sums are reduced backward. Losses and the wish to stop
    add some hundred bytes.
    """
    others = processes - 1
    statistics = 2 * FLOAT * sizes.channels * (sizes.pool - 1)
    return {
        "anchors": sizes.shuffles * others / processes * sizes.images * sizes.anchor_bytes,
        "keys": others * sizes.images * sizes.key_bytes,
        "gradients": 2 * others / processes * FLOAT * sizes.trained,
        "batch statistics": statistics * (sizes.forward_passes + 2 / sizes.pool * sizes.backward_passes),
    }


def requests_of_batch(batch: int, images: float, image_bytes: float, gap: float) -> float:
    """Requests for b images in random order of N, where ranges at most ``gap`` bytes apart are one request.

        b (1 - (b - 1) / (N - 1)) ^ n,    n = 1 + floor(gap / s)

    An image needs a request of its own unless one of the n images before it in the shards is in the batch, too.
    """
    neighbours = 1 + gap // image_bytes
    absent = 1 - (batch - 1) / (images - 1)
    return batch * absent**neighbours


def reader_rate(batch: int, latency: float, seconds_per_image: float) -> float:
    """Images per second of a worker that asks for a batch at a time, all its images at once: b / (latency + b c).

    Args:
        latency: seconds until the store answers.
        seconds_per_image: c, of the processor, for an image's request and bytes.
    """
    return batch / (latency + batch * seconds_per_image)


def node_memory(
    sizes: Sizes, images: float, image_bytes: float, *, processes: int, workers: int, ahead: int
) -> dict[str, float]:
    """Bytes of a machine's memory, by what they are.

        index               16 N: four int32 an image, in a file that all processes map
        order               processes * 8 N, of at most 2^24 images, else 0
        encoded batches     processes * workers * (ahead + 2) * b * s      one waits to be taken, one is used
        views               processes * workers * 2 * b * view_bytes       as torch's DataLoader has ready

    Args:
        processes: of a machine, one a GPU.
        workers: of each process.
        ahead: batches that a worker asks a store for.
    """
    loaders = processes * workers * sizes.images
    drawn = images if images <= DRAWN_ORDER else 0
    return {
        "index": INDEX_ROW * images,
        "order": processes * INDEX * drawn,
        "encoded batches": loaders * (ahead + 2) * image_bytes,
        "views": loaders * 2 * sizes.view_bytes,
    }


def slowest_of(count: int, spread: float) -> float:
    """How many times the mean step the slowest of n machines takes, where the logarithms of their times are normal with
    standard deviation ``spread``.

        E max = integral over (0, 1) of exp(spread q(v^(1/n))) dv,    mean = exp(spread^2 / 2)

    with q the quantiles of the standard normal distribution: v = u^n is uniform for the largest u of n.
    """
    quantile = NormalDist().inv_cdf
    levels = (((point + 0.5) / POINTS) ** (1 / count) for point in range(POINTS))
    return fmean(exp(spread * quantile(level)) for level in levels) / exp(spread**2 / 2)


def checkpoint_period(save_seconds: float, failure_seconds: float) -> float:
    """Seconds between checkpoints that lose the least: sqrt(2 * save * between failures) (Young, 1974)."""
    return sqrt(2 * save_seconds * failure_seconds)


def lost_share(period: float, save_seconds: float, start_seconds: float, failure_seconds: float) -> float:
    """Share of the time that goes into saving, and into what failures cost: half a period and a start each."""
    return save_seconds / period + (period / 2 + start_seconds) / failure_seconds


def start_seconds(images: float, fixed: float, bytes_per_second: float) -> float:
    """Until the first step: what any start takes, and the index, which every machine copies from a store to its disk
    and every process checks: fixed + 16 N / rate of both together."""
    return fixed + INDEX_ROW * images / bytes_per_second
