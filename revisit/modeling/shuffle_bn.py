"""Keys of all processes' anchors. With shuffle-BN the anchors are encoded in another order, so that batch statistics
cannot tell which key belongs to which query."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from revisit.data.randomness import Stream, counter_rng
from revisit.data.to_device import to_device
from revisit.modeling.distributed import start_gather

from detectron2.utils import comm

Rows = dict[str, Tensor]


def shuffle_permutation(global_batch: int, seed: int, iteration: int, part: int = 0) -> np.ndarray:
    """Where the keys of a part of a step are encoded: (B,) int64, whose place n holds image permutation[n]."""
    return counter_rng(seed, Stream.SHUFFLE_BN, iteration, part).permutation(global_batch)


def start_keys(
    encode: Callable[..., Rows], anchors: Sequence[Tensor], widths: dict[str, int], permutation: np.ndarray | None
) -> Callable[[], Rows]:
    """Encode the anchors and start the gather. Returns a function that waits for it and returns all processes' keys.

    Args:
        encode: of ``anchors``, rows by name, (B/P, ..., width).
        anchors: this process's share of the arguments of ``encode``.
        widths: which rows are keys, and their widths.
        permutation: the order in which the global batch is encoded (B,); None: as it is.

    Returns:
        A function. It returns the keys of all processes, (keys, width) by name, in the order of the global batch, and
        the other rows of this process's anchors as ``encode`` returns them.
    """
    if permutation is not None:
        anchors = [scatter_shuffled(view, permutation) for view in anchors]
    others = encode(*anchors)
    gathered = start_gather(torch.cat([others.pop(name) for name in widths], dim=-1))

    def finish() -> Rows:
        keys, own = gathered(), others
        if permutation is not None:
            back = permutation.argsort()
            keys = keys[to_device(back, keys.device)]
            own = {name: scatter_shuffled(rows, back) for name, rows in others.items()}
        rings = keys.flatten(0, -2).split(list(widths.values()), dim=1)
        return dict(zip(widths, rings, strict=True)) | own

    return finish


def scatter_shuffled(rows: Tensor, permutation: np.ndarray) -> Tensor:
    """This process's part of the shuffled global batch.

    Every row travels once, straight to the process that encodes it.

    Args:
        rows: this process's part of the batch in order, (B/P, ...) of any dtype.
        permutation: (B,), the same on all P processes.
    """
    world_size = comm.get_world_size()
    rank = comm.get_rank()
    if world_size == 1:
        return rows[to_device(permutation, rows.device)]
    share = len(rows)
    source = permutation // share  # process that holds the image of each shuffled place
    destination = np.arange(len(permutation)) // share
    is_own = source == rank
    leaving = (permutation % share)[is_own]  # of our rows, in the order of the processes that they go to
    source_of_ours = source[destination == rank]
    arriving = source_of_ours.argsort(kind="stable")  # our places, in the order of the processes that rows come from
    sent = np.bincount(destination[is_own], minlength=world_size).tolist()
    received = np.bincount(source_of_ours, minlength=world_size).tolist()
    outgoing = rows[to_device(leaving, rows.device)].contiguous()
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, received, sent)
    shuffled = torch.empty_like(incoming)
    shuffled[to_device(arriving, rows.device)] = incoming
    return shuffled
