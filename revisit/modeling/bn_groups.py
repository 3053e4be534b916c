"""Which images share batch statistics: groups of MOCO.BN_GROUP, however many processes there are."""

import weakref
from functools import reduce
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from revisit.errors import UserError, expect
from revisit.modeling.distributed import consecutive_processes

from detectron2.config import CfgNode
from detectron2.modeling import build_backbone
from detectron2.utils import comm

aten = torch.ops.aten
FEW_VALUES = 8  # of which a mean and a variance say little; of one the normalised value is 0, of two 1 and -1


class BNGroups(NamedTuple):
    """How the images that all processes run at a time, in their order, fall into equal groups of consecutive ones
    (docs/method.md: Batch statistics). ``splits`` or ``processes`` is 1."""

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
    """The groups of a config, where ``share`` images are a process's batch and ``backbone`` is built already, or not;
    None of one without batch norm. Raises UserError where groups of that size do not fit."""
    if not has_batch_norm(backbone or meta_backbone(cfg)):
        return None
    part, processes = share // cfg.SOLVER.ACCUMULATION_STEPS, cfg.SOLVER.IMS_PER_BATCH // share
    size = cfg.MOCO.BN_GROUP or part
    if groups := _layout(size, part, processes):
        return groups
    raise UserError(
        f"MOCO.BN_GROUP {size}, but each process (of {processes}) runs {part} images at a time: expected a size that "
        "divides them, or whole passes of neighbouring processes; 0 is the whole pass of a process"
    )


def values_of_group(cfg: CfgNode, images: int) -> int:
    """How many values of a channel a group of so many images has in the smallest map that batch norm normalises, over
    the passes of large and of small views; where it is sure to be FEW_VALUES or more, that."""
    if images >= FEW_VALUES:
        return FEW_VALUES
    backbone, views = meta_backbone(cfg).eval(), cfg.VIEWS
    counts, places = [], []
    for layer in filter(lambda layer: isinstance(layer, _BatchNorm), backbone.modules()):
        layer.register_forward_pre_hook(lambda _, inputs: places.append(inputs[0][0, 0].numel()))
    for number, size in ((1, views.LARGE_SIZE), (views.NUM_SMALL, views.SMALL_SIZE)):
        if number:
            backbone(torch.empty(1, 3, size, size, device="meta"))
            counts.append(images * number * min(places))
    return min(counts)


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
    """Input (N, C, H, W). Parameters and buffers keep BatchNorm2d's names; in evaluation it is the layer that it was
    made of. timm has batch norms with an activation in them, which follows ``_normalize``."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        x = self._normalize(x)
        return self.act(self.drop(x)) if hasattr(self, "act") else x

    def _normalize(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class SplitBatchNorm2d(_GroupedBatchNorm2d):
    """BatchNorm2d that normalises each 1/splits of the batch by itself, as that many processes would; its running
    statistics average the parts'."""

    splits: int = 1

    def _normalize(self, x: Tensor) -> Tensor:
        if len(x) % self.splits:
            raise ValueError(f"a batch of {len(x)} does not divide into {self.splits} groups (MOCO.BN_GROUP)")
        mean, var = self.running_mean.repeat(self.splits, 1), self.running_var.repeat(self.splits, 1)
        x = _NormOfParts.apply(x, self.weight, self.bias, mean, var, self)
        torch.mean(mean, 0, out=self.running_mean)
        torch.mean(var, 0, out=self.running_var)
        self.num_batches_tracked.add_(1)
        return x


class _NormOfParts(torch.autograd.Function):
    """Batch norm of each part of a batch by itself, written where it belongs: ``torch.cat`` would copy every map.

    ``means`` and ``variances``, (parts, C), are the parts' running statistics, which are updated.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, means: Tensor, variances: Tensor, layer) -> Tensor:
        out, saved, count = torch.empty_like(x), means.new_empty(2, *means.shape), len(means)
        parts = zip(x.chunk(count), means, variances, out.chunk(count), *saved, strict=True)
        for part, mean, var, *into in parts:
            results = dict(zip(("out", "save_mean", "save_invstd"), into, strict=True))
            aten.native_batch_norm.out(part, weight, bias, mean, var, True, layer.momentum, layer.eps, **results)
        ctx.save_for_backward(x, weight, *saved)
        ctx.eps = layer.eps
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, means, inverses = ctx.saved_tensors
        parts = zip(grad.chunk(len(means)), x.chunk(len(means)), means, inverses, strict=True)
        grads = [
            aten.native_batch_norm_backward(g, part, weight, None, None, mean, inverse, True, ctx.eps, [True] * 3)
            for g, part, mean, inverse in parts
        ]
        of_x, of_weight, of_bias = zip(*grads, strict=True)
        return torch.cat(of_x), reduce(torch.add, of_weight), reduce(torch.add, of_bias), None, None, None


class PooledBatchNorm2d(_GroupedBatchNorm2d):
    """BatchNorm2d over the batches of a group of processes, which are of the same size on all of them.

    One exchange forward and one backward, and nothing that the host waits for: torch's SyncBatchNorm, which allows
    other shares, waits for the GPU three times a layer. Statistics are float32 at least; their gradient reaches every
    process's input.
    """

    group: weakref.ref  # to a ProcessGroup: one that a layer kept alive would outlive dist.destroy_process_group()

    def _normalize(self, x: Tensor) -> Tensor:
        group = self.group()
        with torch.no_grad():
            unused = self.running_mean.new_empty(2, x.shape[1])  # gives the dtype; may become NaN
            own = torch.stack(aten.batch_norm_update_stats(x, *unused, 0.0))
            everywhere = own.new_empty(2 * group.size(), x.shape[1])
            dist.all_gather_into_tensor(everywhere, own, group)
            means, variances = everywhere[::2], everywhere[1::2]
            between, mean = torch.var_mean(means, 0, correction=0)
            var = variances.mean(0) + between  # within the processes and between them
            values = group.size() * x.numel() // x.shape[1]
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * (values / (values - 1)), self.momentum)
            self.num_batches_tracked.add_(1)
        return _NormByGroup.apply(x, self.weight, self.bias, mean, var, self)


class _NormByGroup(torch.autograd.Function):
    """y = (x - mean) / sqrt(var + eps), times weight plus bias; ``mean`` and ``var``, (C,), are those of the x of all
    processes of the layer's group. The gradient of x is

        weight / sqrt(var + eps) * (grad - mean(grad) - y mean(grad y)),  means over the group
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, layer) -> Tensor:
        ctx.save_for_backward(x, weight, mean, var)
        ctx.eps, ctx.group = layer.eps, layer.group
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, ctx.eps)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight, mean, var), group = ctx.saved_tensors, ctx.group()
        inverse = torch.rsqrt(var + ctx.eps)
        statistics = (mean, var, mean, inverse)  # a CPU takes var, a GPU inverse
        # Sums over this process's images: of grad y, and of grad.
        _, *sums = aten.native_batch_norm_backward(grad, x, weight, *statistics, False, ctx.eps, [False, True, True])
        everywhere = torch.stack(sums)
        dist.all_reduce(everywhere, group=group)
        values, columns = x.numel() // x.shape[1], (-1, 1, 1)
        if x.is_cuda:  # one kernel
            counts = torch.full((group.size(),), values, dtype=torch.int32, device=x.device)
            of_inputs = (everywhere[1], everywhere[0] / inverse)  # sums of grad and of grad (x - mean)
            of_x = torch.batch_norm_backward_elemt(grad, x, mean, inverse, weight, *of_inputs, counts)
        else:
            grad_y, grad_one = (each.view(columns) for each in everywhere / (group.size() * values))
            y = (x - mean.view(columns)) * inverse.view(columns)
            of_x = ((weight * inverse).view(columns) * (grad - grad_one - y * grad_y)).to(x.dtype)
        return of_x, *sums, None, None, None


def group_batch_norm(modules: list[nn.Module], groups: BNGroups) -> None:
    """Let every BatchNorm2d below ``modules`` normalise by ``groups``, in place; all processes call it together.
    Raises UserError for another batch norm, whose statistics are not of such groups."""
    pool = consecutive_processes(groups.processes) if groups.processes > 1 else None
    for layer in (layer for module in modules for layer in module.modules() if isinstance(layer, _BatchNorm)):
        if type(layer) is not nn.BatchNorm2d and not hasattr(layer, "act"):  # timm's
            if groups.count > 1:
                kind = type(layer).__name__
                raise UserError(f"the backbone has {kind}, which ignores MOCO.BN_GROUP: expected plain BatchNorm2d")
            continue
        if groups.splits > 1:
            layer.__class__, layer.splits = _of_kind(layer, SplitBatchNorm2d), groups.splits
        elif pool:
            layer.__class__, layer.group = _of_kind(layer, PooledBatchNorm2d), weakref.ref(pool)


def _of_kind(layer: nn.BatchNorm2d, kind: type[_GroupedBatchNorm2d]) -> type[nn.BatchNorm2d]:
    """``kind`` as a subclass of the layer's own class, whose forward it is in evaluation."""
    return kind if type(layer) is nn.BatchNorm2d else type(kind.__name__, (kind, type(layer)), {})
