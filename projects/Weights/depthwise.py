"""Depthwise convolutions whose gradients a CPU computes by its fast kernels."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

BLOCK = 3  # columns of a kernel, at most, whose gradient oneDNN computes by its code for depthwise convolutions


def fast_depthwise(network: nn.Module) -> None:
    """Make depthwise convolutions on a CPU compute their gradients by its fast kernels, to rounding the same.

    By torch's own they take several times as long where a kernel is wider than three, and in bfloat16 with strides.
    """
    for layer in network.modules():
        if _is_known(layer):
            layer.__class__ = _on_cpu(type(layer))


def _is_known(layer: nn.Module) -> bool:
    from timm.layers import Conv2dSame

    if type(layer) not in (nn.Conv2d, Conv2dSame):
        return False
    is_depthwise = layer.groups == layer.in_channels == layer.out_channels > 1
    is_plain = layer.dilation == (1, 1) and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return is_depthwise and is_plain and layer.kernel_size[1] > 1 and layer.stride in ((1, 1), (2, 2))


@cache
def _on_cpu(kind: type) -> type:
    """A subclass rather than a wrapped ``forward``, so that copies of a layer compute with their own weights."""
    return type(kind.__name__, (_FastOnCPU, kind), {})


class _FastOnCPU:
    """Of a convolution."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or not torch.is_grad_enabled():
            return super().forward(x)
        from timm.layers import Conv2dSame, pad_same

        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        if isinstance(self, Conv2dSame):
            x = pad_same(x, self.kernel_size, self.stride)
        return _Depthwise.apply(x, self.weight, self.bias, self.stride, self.padding)


class _Depthwise(torch.autograd.Function):
    """(N, C, H, W), by a weight (C, 1, h, w) of any precision, in x's."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple, padding: tuple) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        bias = bias if bias is None else bias.to(x.dtype)
        return F.conv2d(x, weight.to(x.dtype), bias, stride, padding, 1, len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        dtype = x.dtype if ctx.stride == (1, 1) else torch.promote_types(x.dtype, torch.float32)
        values = (grad.to(dtype), x.to(dtype), weight.to(dtype), ctx.stride, ctx.padding)
        return (
            _of_input(*values).to(x.dtype) if of_x else None,
            _of_weight(*values).to(weight.dtype) if of_weight else None,
            grad.sum((0, 2, 3)).to(weight.dtype) if of_bias else None,
            None,
            None,
        )


def _of_input(grad: Tensor, x: Tensor, weight: Tensor, stride: tuple, padding: tuple) -> Tensor:
    if stride == (1, 1):
        rest = [size - 1 - pad for size, pad in zip(weight.shape[2:], padding, strict=True)]
        return F.conv2d(grad, weight.flip(2, 3), None, 1, rest, 1, len(weight))
    return _torchs(grad, x, weight, stride, padding, 0)


def _of_weight(grad: Tensor, x: Tensor, weight: Tensor, stride: tuple, padding: tuple) -> Tensor:
    """By blocks of columns. That of a block is as if the block were the kernel and the outputs lay further right."""
    out = torch.empty_like(weight)
    if weight.shape[3] > BLOCK:  # oneDNN's code also wants narrow padding
        (height, width), padding = padding, (0, 0)
        x = F.pad(x, (width, width, height, height))
    for start in range(0, weight.shape[3] - 1, BLOCK - 1):
        block = weight[..., start : start + BLOCK]
        outputs = (x.shape[3] + 2 * padding[1] - block.shape[3]) // stride[1] + 1
        left = start // stride[1]
        moved = F.pad(grad, (left, outputs - left - grad.shape[3]))
        out[..., start : start + BLOCK] = _torchs(moved, x, block.contiguous(), stride, padding, 1)
    return out


def _torchs(grad: Tensor, x: Tensor, weight: Tensor, stride: tuple, padding: tuple, place: int) -> Tensor:
    """The gradient of the input (place 0) or the weight (1)."""
    wanted = [n == place for n in range(3)]
    options = (None, stride, padding, (1, 1), False, (0, 0), len(weight), wanted)
    return torch.ops.aten.convolution_backward(grad, x, weight, *options)[place]
