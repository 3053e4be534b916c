"""Batch statistics that cannot leak which key belongs to which query: shuffle-BN and its one-process emulation."""

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from revisit.randomness import Stream, counter_rng

from detectron2.utils import comm


class SplitBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d that normalises each 1/splits of the batch by itself, as that many processes would.

    Input (N, C, H, W); in training N must be a multiple of ``splits``. Running statistics average the
    parts'. Parameters and buffers keep BatchNorm2d's names.
    """

    splits: int = 1

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        n, c, h, w = x.shape
        if n % self.splits:
            raise ValueError(f"a batch of {n} does not divide into MOCO.BN_SPLITS {self.splits} parts")
        # Folding the parts into channels gives every part statistics of its own in one call.
        parts = x.reshape(self.splits, n // self.splits, c, h, w).transpose(0, 1)
        mean, var = self.running_mean.repeat(self.splits), self.running_var.repeat(self.splits)
        weight, bias = self.weight.repeat(self.splits), self.bias.repeat(self.splits)
        out = nn.functional.batch_norm(
            parts.reshape(n // self.splits, self.splits * c, h, w),
            mean, var, weight, bias, True, self.momentum, self.eps,
        )  # fmt: skip
        self.running_mean.copy_(mean.view(self.splits, c).mean(0))
        self.running_var.copy_(var.view(self.splits, c).mean(0))
        self.num_batches_tracked.add_(1)
        return out.view(n // self.splits, self.splits, c, h, w).transpose(0, 1).reshape(n, c, h, w)


def split_batch_norm(module: nn.Module, splits: int) -> None:
    """Turn every BatchNorm2d below ``module`` into a SplitBatchNorm2d, in place."""
    for layer in module.modules():
        if type(layer) is nn.BatchNorm2d:
            layer.__class__ = SplitBatchNorm2d
            layer.splits = splits


def shuffle_permutation(global_batch: int, seed: int, iteration: int, part: int = 0) -> Tensor:
    """Where the keys of a part of a step are encoded: place n of the shuffled batch holds image permutation[n]."""
    return torch.from_numpy(counter_rng(seed, Stream.SHUFFLE_BN, iteration, part).permutation(global_batch))


def scatter_shuffled(rows: Tensor, permutation: Tensor) -> Tensor:
    """This process's part of the shuffled global batch.

    Args:
        rows: (B/P, ...) this process's part of the global batch in order, any dtype.
        permutation: (B,) as ``shuffle_permutation`` gives it, the same on all P processes.

    Every row travels once, straight to the process that encodes it.
    """
    world_size, rank = comm.get_world_size(), comm.get_rank()
    if world_size == 1:
        return rows[permutation.to(rows.device)]
    share = len(rows)
    source = (permutation // share).numpy()  # process that holds the image of each shuffled place
    destination = np.arange(len(permutation)) // share
    mine = (permutation % share).numpy()
    sends = [mine[(source == rank) & (destination == to)] for to in range(world_size)]
    places = [np.flatnonzero((source == of) & (destination == rank)) - rank * share for of in range(world_size)]
    outgoing = rows[torch.from_numpy(np.concatenate(sends)).to(rows.device)].contiguous()
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, [len(p) for p in places], [len(s) for s in sends])
    shuffled = torch.empty_like(incoming)
    shuffled[torch.from_numpy(np.concatenate(places)).to(rows.device)] = incoming
    return shuffled
