"""Batch norm of 1x1 convolutions that widen a map, on a CPU: by the moments of the narrow map, inside the convolution.

The variance of w x is w Cov(x) w', its mean w E(x). So nothing goes through the wide map but the convolution itself,
where torch's batch norm goes through it five times in a training step. To rounding, results and gradients are the same.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def norm_by_moments(network: nn.Module) -> None:
    """Let the expansions of a network's inverted residual blocks (MobileNets, EfficientNets) normalise what they
    compute, where they train on a CPU. Modules, tensors and their names stay."""
    for block in network.modules():
        convolution, norm = getattr(block, "conv_pw", None), getattr(block, "bn1", None)
        if hasattr(block, "conv_pwl") and _widens(convolution) and _is_plain(norm):
            convolution.__class__, norm.__class__ = _Normalising, _with_activation(type(norm))
            convolution.norm_after = (norm,)  # in a tuple it is no module of the convolution's


def _widens(layer: nn.Module | None) -> bool:
    if type(layer) is not nn.Conv2d or layer.bias is not None:
        return False
    return layer.kernel_size == layer.stride == (1, 1) and layer.groups == 1 and layer.out_channels > layer.in_channels


def _is_plain(norm: nn.Module | None) -> bool:
    from timm.layers import BatchNormAct2d

    return type(norm) is BatchNormAct2d and norm.affine and norm.track_running_stats and norm.momentum is not None


@cache
def _with_activation(kind: type) -> type:
    return type(kind.__name__, (_OnlyActivation, kind), {})


def _normalises(norm: nn.Module, x: Tensor) -> bool:
    """Whether the convolution does it. A class that was given to the norm since then normalises by its own groups."""
    is_ours = type(norm).__mro__[1] is _OnlyActivation
    return is_ours and norm.training and x.device.type == "cpu" and x.numel() > x.shape[1]


class _OnlyActivation:
    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(x)) if _normalises(self, x) else super().forward(x)


class _Normalising(nn.Conv2d):
    norm_after: tuple[nn.Module]

    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm_after[0]
        return F.conv2d(x, *_folded(x, self.weight, norm)) if _normalises(norm, x) else super().forward(x)


def _folded(x: Tensor, weight: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution and the batch norm after it, whose running statistics are updated."""
    with torch.autocast("cpu", enabled=False):
        mean, covariance = _Moments.apply(x)
        weight = weight.flatten(1)
        means, variances = weight @ mean, (weight @ covariance * weight).sum(1)
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            norm.running_mean.lerp_(means, norm.momentum)
            norm.running_var.lerp_(variances * (count / (count - 1)), norm.momentum)
            norm.num_batches_tracked.add_(1)
        scale = norm.weight * torch.rsqrt(variances + norm.eps)
        return (weight * scale[:, None])[:, :, None, None], norm.bias - means * scale


class _Moments(torch.autograd.Function):
    """(N, C, H, W) -> the mean (C,) and the covariance (C, C) of its places, float32 at least."""

    @staticmethod
    def forward(ctx, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = _rows(x).to(torch.promote_types(x.dtype, torch.float32), copy=True)
        mean = rows.mean(0)
        rows -= mean
        ctx.save_for_backward(x, mean)
        return mean, rows.T @ rows / len(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, of_mean: Tensor, of_covariance: Tensor) -> Tensor:
        x, mean = ctx.saved_tensors
        rows = _rows(x)
        both = (of_covariance + of_covariance.T) / len(rows)
        grad = torch.addmm((of_mean / len(rows) - mean @ both).to(x.dtype), rows, both.to(x.dtype))
        return grad.view(*x.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)


def _rows(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
