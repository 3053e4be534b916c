"""The log-sum-exp and the top-k of all scores against a queue, which is read in parts, so that memory does not grow
with K.

The log-sum-exp runs over the parts together with its gradient, the softmax's mean row; so does the top-k.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

MAX_SCORES = 2**22  # in memory at once, by default
# Of scores (M, n) of a part of the queue and its places: what counts of them. It may change them in place; a row that
# does not count has -inf.
Change = Callable[[Tensor, slice], Tensor]


def log_sum_exp(rows: Tensor, queue: Tensor, max_scores: int = MAX_SCORES, change: Change | None = None) -> Tensor:
    """log sum_n exp(rows . queue[n]) of rows (M, C) and a queue (K, C): (M,), with gradient to the rows alone.

    At most ``max_scores`` scores are in memory at once; 0: all. The queue may change before backward. A ``change`` may
    leave scores out; where it leaves out all of a row, the sum is 0: -inf, without gradient.
    """
    return _LogSumExp.apply(rows, queue, max_scores, change)


class _LogSumExp(torch.autograd.Function):
    """The gradient, sum_n softmax_n queue[n], is a mean that forward sums up, so backward needs no scores."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        rows: Tensor,
        queue: Tensor,
        max_scores: int,
        change: Change | None,
    ) -> Tensor:
        limits = torch.finfo(rows.dtype)
        highest = rows.new_full((len(rows),), limits.min)
        total = torch.zeros_like(highest)  # of exp(score - highest)
        mean = torch.zeros_like(rows)
        for part, scores in scores_in_parts(rows, queue, max_scores, change=change):
            before = highest
            highest = torch.maximum(before, scores.amax(dim=1))
            shrink = (before - highest).exp_()
            weights = scores.sub_(highest[:, None]).exp_()
            total.mul_(shrink).add_(weights.sum(dim=1))
            mean.mul_(shrink[:, None]).addmm_(weights, at_least_float32(part))
        at_least_tiny = total.clamp(min=limits.tiny)  # which alters no sum that has a row
        ctx.save_for_backward(mean.div_(at_least_tiny[:, None]))
        return highest + total.log_()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (mean,) = ctx.saved_tensors
        return grad[:, None] * mean, None, None, None


@torch.no_grad()
def nearest_rows(
    rows: Tensor, queue: Tensor, k: int, max_scores: int = MAX_SCORES, change: Change | None = None
) -> Tensor:
    """For unit rows (M, W) the (M, k) int64 rows of the queue (K, W) of highest cosine, in no order.

    On a GPU, rows are rounded to the type of a queue of 16 bits. A ``change`` may add to the cosines.
    """
    best = indices = None
    start = 0
    for part, scores in scores_in_parts(at_least_float32(rows), queue, max_scores, may_round=True, change=change):
        values, columns = scores.topk(min(k, len(part)), dim=1, sorted=False)
        columns += start
        start += len(part)
        if best is not None:
            values = torch.cat([best, values], dim=1)
            columns = torch.cat([indices, columns], dim=1)
            values, chosen = values.topk(min(k, values.shape[1]), dim=1, sorted=False)
            columns = columns.gather(1, chosen)
        best, indices = values, columns
    return indices


def scores_in_parts(
    rows: Tensor, queue: Tensor, max_scores: int, may_round: bool = False, change: Change | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts of the queue (n, W), and their scores rows @ part.T, (M, n) float32.

    Args:
        max_scores: most numbers of a part and of its scores, but a part has a row at least. 0: the whole queue.
        may_round: a GPU may round the rows to the type of a queue of 16 bits.
        change: what each part's scores go through.
    """
    # A GPU sums products of 16 bits in float32, and hands these sums over.
    rounds = may_round and queue.is_cuda and queue.itemsize == 2
    length = max(1, max_scores // max(rows.shape)) if max_scores else len(queue)
    rows = rows.to(queue.dtype) if rounds else rows
    for start in range(0, len(queue), length):
        places = slice(start, start + length)
        part = queue[places]
        if rounds:
            scores = torch.mm(rows, part.T, out_dtype=torch.float32)
        else:
            scores = rows @ at_least_float32(part).T
        yield part, change(scores, places) if change else scores


def at_least_float32(x: Tensor) -> Tensor:
    """float64 as it is, anything else as float32."""
    return x if x.dtype == torch.float64 else x.float()
