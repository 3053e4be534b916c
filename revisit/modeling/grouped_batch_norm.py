"""Batch norm over groups of images: parts of a process's batch, or the batches of several processes."""

import weakref
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from revisit.errors import UserError
from revisit.modeling.bn_groups import BNGroups, batch_norms
from revisit.modeling.distributed import consecutive_processes

aten = torch.ops.aten


def group_batch_norm(modules: list[nn.Module], groups: BNGroups) -> None:
    """Let every BatchNorm2d in ``modules`` normalise by ``groups``, in place; all processes call it together.

    Raises:
        UserError: there is another batch norm, whose statistics are not of such groups.
    """
    pool = consecutive_processes(groups.processes) if groups.processes > 1 else None
    for layer in [layer for module in modules for layer in batch_norms(module)]:
        # Torch's, and timm's with an activation in it.
        if not (type(layer) is nn.BatchNorm2d or hasattr(layer, "act")):
            kind = type(layer).__name__
            if groups.count > 1:
                raise UserError(f"the network has {kind}, which ignores MOCO.BN_GROUP: expected plain BatchNorm2d")
        elif groups.splits > 1:
            layer.__class__ = _with_class_of(layer, SplitBatchNorm2d)
            layer.splits = groups.splits
        elif pool:
            layer.__class__ = _with_class_of(layer, PooledBatchNorm2d)
            layer.group = weakref.ref(pool)


class _GroupedBatchNorm2d(nn.BatchNorm2d):
    """Input (N, C, H, W). Parameters and buffers keep BatchNorm2d's names. In evaluation it is the layer that it was
    before. A timm layer's activation follows ``_normalize``."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        x = self._normalize(x)
        return self.act(self.drop(x)) if hasattr(self, "act") else x

    def _normalize(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def _with_class_of(layer: nn.BatchNorm2d, kind: type[_GroupedBatchNorm2d]) -> type[nn.BatchNorm2d]:
    """``kind``, with the layer's own class as a base, whose forward it has in evaluation."""
    if type(layer) is nn.BatchNorm2d:
        return kind
    return type(kind.__name__, (kind, type(layer)), {})


class SplitBatchNorm2d(_GroupedBatchNorm2d):
    """BatchNorm2d that normalises each 1/splits of the batch by itself, as that many processes would; its running
    statistics average the parts'."""

    splits: int = 1

    def _normalize(self, x: Tensor) -> Tensor:
        if len(x) % self.splits:
            raise ValueError(f"a batch of {len(x)} does not divide into {self.splits} groups (MOCO.BN_GROUP)")
        means = self.running_mean.repeat(self.splits, 1)
        variances = self.running_var.repeat(self.splits, 1)
        x = _NormOfParts.apply(x, self.weight, self.bias, means, variances, self)
        torch.mean(means, 0, out=self.running_mean)
        torch.mean(variances, 0, out=self.running_var)
        self.num_batches_tracked.add_(1)
        return x


class _NormOfParts(torch.autograd.Function):
    """Batch norm of each part of a batch by itself, written into one output: ``torch.cat`` would copy every map.

    ``means`` and ``variances``, (parts, C), are the parts' running statistics, which are updated.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, means: Tensor, variances: Tensor, layer) -> Tensor:
        count = len(means)
        out = torch.empty_like(x)
        batch_means, inverses = means.new_empty(2, *means.shape)
        outputs = zip(out.chunk(count), batch_means, inverses, strict=True)
        for part, mean, var, (y, batch_mean, inverse) in zip(x.chunk(count), means, variances, outputs, strict=True):
            aten.native_batch_norm.out(
                part,
                weight,
                bias,
                mean,
                var,
                True,
                layer.momentum,
                layer.eps,
                out=y,
                save_mean=batch_mean,
                save_invstd=inverse,
            )
        ctx.save_for_backward(x, weight, batch_means, inverses)
        ctx.eps = layer.eps
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, means, inverses = ctx.saved_tensors
        count = len(means)
        parts = zip(grad.chunk(count), x.chunk(count), means, inverses, strict=True)
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
        with torch.no_grad():
            mean, var = self._statistics(x)
            values = self.group().size() * x.numel() // x.shape[1]
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * (values / (values - 1)), self.momentum)
            self.num_batches_tracked.add_(1)
        return _NormByGroup.apply(x, self.weight, self.bias, mean, var, self)

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance, (C,) each, of the x of all processes of the group."""
        group = self.group()
        unused = self.running_mean.new_empty(2, x.shape[1])  # gives the dtype; may become NaN
        own = torch.stack(aten.batch_norm_update_stats(x, *unused, 0.0))
        everywhere = own.new_empty(2 * group.size(), x.shape[1])
        dist.all_gather_into_tensor(everywhere, own, group)
        means = everywhere[::2]
        variances = everywhere[1::2]
        between, mean = torch.var_mean(means, 0, correction=0)
        return mean, variances.mean(0) + between


class _NormByGroup(torch.autograd.Function):
    """y = (x - mean) / sqrt(var + eps), times weight plus bias; ``mean`` and ``var``, (C,), are those of the x of all
    processes of the layer's group. The gradient of x is

        weight / sqrt(var + eps) * (grad - mean(grad) - y mean(grad y)),  means over the group
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, layer) -> Tensor:
        ctx.save_for_backward(x, weight, mean, var)
        ctx.eps = layer.eps
        ctx.group = layer.group
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, ctx.eps)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, var = ctx.saved_tensors
        group = ctx.group()
        inverse = torch.rsqrt(var + ctx.eps)
        # Sums over this process's images: of grad y, and of grad. A CPU takes var, a GPU inverse.
        _, *sums = aten.native_batch_norm_backward(
            grad, x, weight, mean, var, mean, inverse, False, ctx.eps, [False, True, True]
        )
        everywhere = torch.stack(sums)
        dist.all_reduce(everywhere, group=group)
        of_input = _by_one_kernel if x.is_cuda else _by_formula
        return of_input(grad, x, weight, mean, inverse, everywhere, group.size()), *sums, None, None, None


def _by_formula(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, sums: Tensor, processes: int
) -> Tensor:
    """The gradient of x, from the group's ``sums`` of grad y and of grad, (2, C)."""
    columns = (-1, 1, 1)
    values = processes * x.numel() // x.shape[1]
    mean_grad_y, mean_grad = (sums / values).view(2, *columns)
    y = (x - mean.view(columns)) * inverse.view(columns)
    of_x = (weight * inverse).view(columns) * (grad - mean_grad - y * mean_grad_y)
    return of_x.to(x.dtype)


def _by_one_kernel(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, sums: Tensor, processes: int
) -> Tensor:
    """``_by_formula`` on a GPU."""
    counts = torch.full((processes,), x.numel() // x.shape[1], dtype=torch.int32, device=x.device)
    sum_grad = sums[1]
    sum_grad_x = sums[0] / inverse  # of grad (x - mean)
    return torch.batch_norm_backward_elemt(grad, x, mean, inverse, weight, sum_grad, sum_grad_x, counts)
