"""The losses of contrastive.py without the matrix of all scores: the queue is gone through in chunks of rows.

Memory does not grow with K: MAX_SCORES scores at a time, and a running log-sum-exp (with the softmax's mean row, which
is its gradient) and a running top-k in place of what the whole matrix would be kept for.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from revisit.modeling.losses.contrastive import at_least_float32, contrastive_losses

MAX_SCORES = 2**22  # by default
# A GPU sums products of 16 bits in float32 and hands these over, from torch 2.8 on.
SUMS_IN_FLOAT32 = "out_dtype" in torch.mm.__doc__


def chunked_losses(
    positives: Tensor,
    anchors: Tensor,
    queue: Tensor,
    positives_g: Tensor | None = None,
    queue_g: Tensor | None = None,
    *,
    temperature: float,
    num_neighbors: int = 0,
    max_scores: int,
) -> dict[str, Tensor]:
    """``contrastive_losses``, equal but for the order of sums; by it where its scores are at most ``max_scores``, which
    are in memory at once (0: no limit). Queues may be bfloat16 or float16; products are accumulated in float32."""
    if not max_scores or positives[..., 0].numel() * len(queue) <= max_scores:
        options = {"temperature": temperature, "num_neighbors": num_neighbors}
        return contrastive_losses(positives, anchors, queue, positives_g, queue_g, **options)
    with torch.autocast(positives.device.type, enabled=False):
        p, a = at_least_float32(positives) / temperature, at_least_float32(anchors)
        lse = _LogSumExp.apply(p.flatten(0, 1), queue, max_scores)  # (B*L,)
        positive_score = (p * a[:, None]).sum(dim=2).flatten()
        losses = {"loss_inst": (torch.logaddexp(positive_score, lse) - positive_score).mean()}
        if num_neighbors:
            before_head = positives_g is not None and queue_g is not None
            rows, ring = (positives_g, queue_g) if before_head else (positives, queue)
            neighbors = nearest_rows(rows.flatten(0, 1), ring, num_neighbors, max_scores)
            mean_row = at_least_float32(queue[neighbors]).mean(dim=1)  # of the scores' mean, (B*L, C)
            losses["loss_nn"] = (lse - (p.flatten(0, 1) * mean_row).sum(dim=1)).mean()
        return losses


class _LogSumExp(torch.autograd.Function):
    """log sum_n exp(rows . queue[n]) of (M, C) rows, (M,). Its gradient, sum_n softmax_n queue[n], is a mean that
    goes along with the sum, so that backward needs no scores."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, rows: Tensor, queue: Tensor, max_scores: int) -> Tensor:
        highest = rows.new_full((len(rows),), -torch.inf)
        total, mean = torch.zeros_like(highest), torch.zeros_like(rows)
        for part, scores in scores_in_chunks(rows, queue, max_scores):
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
def nearest_rows(rows: Tensor, queue: Tensor, k: int, max_scores: int = 0) -> Tensor:
    """For unit rows (M, W) the (M, k) int64 rows of the queue (K, W) of highest cosine, in no order.

    On a GPU, rows are rounded to the type of a queue of 16 bits.
    """
    best, places, start = rows.new_empty(len(rows), 0), None, 0
    for part, scores in scores_in_chunks(at_least_float32(rows), queue, max_scores, rounded=True):
        values, columns = scores.topk(min(k, len(part)), dim=1, sorted=False)
        columns += start
        start += len(part)
        if places is not None:
            values, columns = torch.cat([best, values], dim=1), torch.cat([places, columns], dim=1)
            values, chosen = values.topk(min(k, values.shape[1]), dim=1, sorted=False)
            columns = columns.gather(1, chosen)
        best, places = values, columns
    return places


def scores_in_chunks(
    rows: Tensor, queue: Tensor, max_scores: int, rounded: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts of the queue (n, W), and rows @ part.T, (M, n) float32: neither of more than ``max_scores`` numbers, but
    for a single row (0: the whole queue). A GPU may have the rows ``rounded`` to the type of a queue of 16 bits."""
    rounded = rounded and queue.is_cuda and queue.itemsize == 2 and SUMS_IN_FLOAT32
    length = max(1, max_scores // max(rows.shape)) if max_scores else len(queue)
    left = rows.to(queue.dtype) if rounded else rows
    for part in queue.split(length):
        yield part, torch.mm(left, part.T, out_dtype=torch.float32) if rounded else left @ at_least_float32(part).T
