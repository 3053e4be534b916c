"""Shuffle-BN: anchors that change places, so that batch statistics cannot tell which key belongs to which query."""

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from revisit.data.randomness import Stream, counter_rng
from revisit.data.to_device import to_device

from detectron2.utils import comm


def shuffle_permutation(global_batch: int, seed: int, iteration: int, part: int = 0) -> np.ndarray:
    """Where the keys of a part of a step are encoded: (B,) int64, whose place n holds image permutation[n]."""
    return counter_rng(seed, Stream.SHUFFLE_BN, iteration, part).permutation(global_batch)


def scatter_shuffled(rows: Tensor, permutation: np.ndarray) -> Tensor:
    """This process's part of the shuffled global batch, from its part in order, (B/P, ...) of any dtype, and a
    permutation (B,) that is the same on all P processes. Every row travels once, straight to who encodes it."""
    world_size, rank = comm.get_world_size(), comm.get_rank()
    if world_size == 1:
        return rows[to_device(permutation, rows.device)]
    share = len(rows)
    source = permutation // share  # process that holds the image of each shuffled place
    destination = np.arange(len(permutation)) // share
    mine = permutation % share
    sends = [mine[(source == rank) & (destination == to)] for to in range(world_size)]
    places = [np.flatnonzero((source == of) & (destination == rank)) - rank * share for of in range(world_size)]
    outgoing = rows[to_device(np.concatenate(sends), rows.device)].contiguous()
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, [len(p) for p in places], [len(s) for s in sends])
    shuffled = torch.empty_like(incoming)
    shuffled[to_device(np.concatenate(places), rows.device)] = incoming
    return shuffled
