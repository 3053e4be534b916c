"""What the losses need of all scores against a queue, without the matrix of these scores: the queue is read in parts.

Memory does not grow with K. A running log-sum-exp, with the softmax's mean row, which is its gradient, and a running
top-k take the place of the matrix.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

MAX_SCORES = 2**22  # in memory at once, by default
# A GPU sums products of 16 bits in float32 and hands these over, from torch 2.8 on.
SUMS_IN_FLOAT32 = "out_dtype" in torch.mm.__doc__


def log_sum_exp(rows: Tensor, queue: Tensor, max_scores: int = MAX_SCORES) -> Tensor:
    """log sum_n exp(rows . queue[n]) of rows (M, C) and a queue (K, C): (M,), with gradient to the rows alone.

    At most ``max_scores`` scores are in memory at once; 0: all. The queue may change before backward.
    """
    return _LogSumExp.apply(rows, queue, max_scores)


class _LogSumExp(torch.autograd.Function):
    """The gradient, sum_n softmax_n queue[n], is a mean that is summed up in forward, so backward needs no scores."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, rows: Tensor, queue: Tensor, max_scores: int) -> Tensor:
        highest = rows.new_full((len(rows),), -torch.inf)
        total, mean = torch.zeros_like(highest), torch.zeros_like(rows)
        for part, scores in scores_in_parts(rows, queue, max_scores):
            before, highest = highest, torch.maximum(highest, scores.amax(dim=1))
            shrink = (before - highest).exp_()
            weights = scores.sub_(highest[:, None]).exp_()
            total.mul_(shrink).add_(weights.sum(dim=1))
            mean.mul_(shrink[:, None]).addmm_(weights, at_least_float32(part))
        ctx.save_for_backward(mean.div_(total[:, None]))
        return highest + total.log_()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:
        (mean,) = ctx.saved_tensors
        return grad[:, None] * mean, None, None


@torch.no_grad()
def nearest_rows(rows: Tensor, queue: Tensor, k: int, max_scores: int = MAX_SCORES) -> Tensor:
    """For unit rows (M, W) the (M, k) int64 rows of the queue (K, W) of highest cosine, in no order.

    On a GPU, rows are rounded to the type of a queue of 16 bits.
    """
    best, places, start = rows.new_empty(len(rows), 0), None, 0
    for part, scores in scores_in_parts(at_least_float32(rows), queue, max_scores, rounded=True):
        values, columns = scores.topk(min(k, len(part)), dim=1, sorted=False)
        columns += start
        start += len(part)
        if places is not None:
            values, columns = torch.cat([best, values], dim=1), torch.cat([places, columns], dim=1)
            values, chosen = values.topk(min(k, values.shape[1]), dim=1, sorted=False)
            columns = columns.gather(1, chosen)
        best, places = values, columns
    return places


def scores_in_parts(
    rows: Tensor, queue: Tensor, max_scores: int, rounded: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts of the queue (n, W), and rows @ part.T, (M, n) float32: neither of more than ``max_scores`` numbers, but
    for a single row (0: the whole queue). A GPU may have the rows ``rounded`` to the type of a queue of 16 bits."""
    rounded = rounded and queue.is_cuda and queue.itemsize == 2 and SUMS_IN_FLOAT32
    length = max(1, max_scores // max(rows.shape)) if max_scores else len(queue)
    left = rows.to(queue.dtype) if rounded else rows
    for part in queue.split(length):
        yield part, torch.mm(left, part.T, out_dtype=torch.float32) if rounded else left @ at_least_float32(part).T


def at_least_float32(x: Tensor) -> Tensor:
    """float64 as it is, anything else as float32."""
    return x if x.dtype == torch.float64 else x.float()
