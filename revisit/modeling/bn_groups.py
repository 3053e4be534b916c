"""Which images share batch statistics: groups of MOCO.BN_GROUP, however many processes there are."""

import weakref
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from revisit.errors import UserError, expect
from revisit.modeling.distributed import consecutive_processes
from revisit.modeling.losses.contrastive import at_least_float32

from detectron2.config import CfgNode
from detectron2.modeling import build_backbone
from detectron2.utils import comm


class BNGroups(NamedTuple):
    """How the images that all processes run at a time fall into equal groups (docs/method.md: Batch statistics).

    ``splits`` or ``processes`` is 1. Groups are consecutive images in the order of the processes.
    """

    images: int  # in a group
    splits: int  # groups in a process's pass
    processes: int  # neighbours whose whole passes are a group
    count: int  # groups in all


def has_batch_norm(backbone: nn.Module) -> bool:
    """Whether a backbone, with or without values, has batch norm."""
    return any(isinstance(layer, _BatchNorm) for layer in backbone.modules())


def meta_backbone(cfg: CfgNode) -> nn.Module:
    """The backbone of a config without values, to look at."""
    with torch.device("meta"):
        return build_backbone(cfg)


def bn_groups(cfg: CfgNode, share: int, backbone: nn.Module | None = None) -> BNGroups | None:
    """The groups of a config, where ``share`` images are a process's batch; None of a backbone without batch norm.

    Args:
        backbone: of the config, where it is built already.

    Raises:
        UserError: a pass is neither a number of such groups, nor a number of passes such a group.
    """
    if not has_batch_norm(backbone or meta_backbone(cfg)):
        return None
    part, processes = share // cfg.SOLVER.ACCUMULATION_STEPS, cfg.SOLVER.IMS_PER_BATCH // share
    size = cfg.MOCO.BN_GROUP or part
    if groups := _layout(size, part, processes):
        return groups
    possible = [n for n in range(2, part * processes // 2 + 1) if _layout(n, part, processes)]
    nearest = min(possible, key=lambda n: abs(n - size), default=0)
    at_a_time = f"each of {processes} processes runs" if processes > 1 else "the process runs"
    raise UserError(
        f"MOCO.BN_GROUP {size}, but {at_a_time} {part} images at a time: expected a size that divides them, or whole "
        f"passes of neighbouring processes, such as MOCO.BN_GROUP {nearest}; 0 is the whole pass of a process"
    )


def whole_batch(cfg: CfgNode) -> BNGroups:
    """One group of the images of all processes."""
    return BNGroups(cfg.SOLVER.IMS_PER_BATCH, 1, comm.get_world_size(), 1)


def check_whole_batch(cfg: CfgNode, method: str) -> None:
    """Raise UserError where a method of that title would see its batch, and such a group, in parts."""
    parts = cfg.SOLVER.ACCUMULATION_STEPS
    expect(parts == 1, f"SOLVER.ACCUMULATION_STEPS {parts}: {method} learns from whole batches; expected 1")


def _layout(size: int, part: int, processes: int) -> BNGroups | None:
    """Groups of ``size`` images where ``processes`` run ``part`` each; None if there are no such groups."""
    if part % size == 0:
        return BNGroups(size, part // size, 1, part // size * processes)
    pooled = size // part
    if size % part == 0 and processes % pooled == 0:
        return BNGroups(size, 1, pooled, processes // pooled)
    return None


class _GroupedBatchNorm2d(nn.BatchNorm2d):
    """Input (N, C, H, W). Parameters and buffers keep BatchNorm2d's names.

    In evaluation it is the layer that it was made of. timm has batch norms with an activation in them, which follows
    ``_normalize``.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        x = self._normalize(x)
        return self.act(self.drop(x)) if hasattr(self, "act") else x

    def _normalize(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class SplitBatchNorm2d(_GroupedBatchNorm2d):
    """BatchNorm2d that normalises each 1/splits of the batch by itself, as that many processes would.

    In training the batch must be a multiple of ``splits``. Running statistics average the parts'.
    """

    splits: int = 1

    def _normalize(self, x: Tensor) -> Tensor:
        if len(x) % self.splits:
            raise ValueError(f"a batch of {len(x)} does not divide into {self.splits} groups (MOCO.BN_GROUP)")
        mean, var = self.running_mean.repeat(self.splits, 1), self.running_var.repeat(self.splits, 1)
        options = (self.weight, self.bias, True, self.momentum, self.eps)
        out = [F.batch_norm(part, *own, *options) for part, *own in zip(x.chunk(self.splits), mean, var, strict=True)]
        self.running_mean.copy_(mean.mean(0))
        self.running_var.copy_(var.mean(0))
        self.num_batches_tracked.add_(1)
        return torch.cat(out)


class PooledBatchNorm2d(_GroupedBatchNorm2d):
    """BatchNorm2d over the batches of a group of processes: what SyncBatchNorm is on a GPU, for any device.

    Batches are of the same size on all of them. Statistics are computed in float32 at least, in two passes; their
    gradient reaches every process's input.
    """

    group: weakref.ref  # to a ProcessGroup: one that a layer kept alive would outlive dist.destroy_process_group()

    def _normalize(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x)
        mean = self._mean(wide)
        centred = wide - mean
        var = self._mean(centred.square())
        with torch.no_grad():
            values = self.group().size() * x.numel() // x.shape[1]
            self.running_mean.lerp_(mean.flatten(), self.momentum)
            self.running_var.lerp_(var.flatten() * values / (values - 1), self.momentum)
            self.num_batches_tracked.add_(1)
        scale = self.weight.view(-1, 1, 1) * torch.rsqrt(var + self.eps)
        return (centred * scale + self.bias.view(-1, 1, 1)).to(x.dtype)

    def _mean(self, x: Tensor) -> Tensor:
        """Of every channel over the group, (1, C, 1, 1)."""
        group = self.group()
        return all_reduce(x.mean((0, 2, 3), keepdim=True), group=group) / group.size()


def group_batch_norm(modules: list[nn.Module], groups: BNGroups) -> None:
    """Let every BatchNorm2d below ``modules`` normalise by ``groups``, in place; all processes call it together.

    Raises:
        UserError: another batch norm, whose statistics are not of such groups.
    """
    pool = consecutive_processes(groups.processes) if groups.processes > 1 else None
    for layer in (layer for module in modules for layer in module.modules() if isinstance(layer, _BatchNorm)):
        with_act = hasattr(layer, "act")  # timm's
        if type(layer) is not nn.BatchNorm2d and not with_act:
            if groups.count > 1:
                kind = type(layer).__name__
                raise UserError(f"the backbone has {kind}, which ignores MOCO.BN_GROUP: expected plain BatchNorm2d")
            continue
        if groups.splits > 1:
            layer.__class__, layer.splits = _of_kind(layer, SplitBatchNorm2d), groups.splits
        elif pool and dist.get_backend() == "nccl":
            layer.__class__, layer.process_group = _synchronised(with_act), pool
        elif pool:
            layer.__class__, layer.group = _of_kind(layer, PooledBatchNorm2d), weakref.ref(pool)


def _of_kind(layer: nn.BatchNorm2d, kind: type[_GroupedBatchNorm2d]) -> type[nn.BatchNorm2d]:
    """``kind`` as a subclass of the layer's own class, whose forward it is in evaluation."""
    return kind if type(layer) is nn.BatchNorm2d else type(kind.__name__, (kind, type(layer)), {})


def _synchronised(with_act: bool) -> type[nn.SyncBatchNorm]:
    if not with_act:
        return nn.SyncBatchNorm
    from timm.layers import SyncBatchNormAct

    return SyncBatchNormAct
