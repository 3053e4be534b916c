"""Scores of rows against a queue, as many at a time as memory is given for."""

from collections.abc import Iterator

import torch
from torch import Tensor


@torch.no_grad()
def nearest_rows(rows: Tensor, queue: Tensor, k: int, max_scores: int = 0) -> Tensor:
    """For unit rows (M, W) the (M, k) int64 rows of the queue (K, W) of highest cosine, in no order."""
    best, places, start = rows.new_empty(len(rows), 0), None, 0
    for chunk, scores in scores_in_chunks(at_least_float32(rows), queue, max_scores):
        values, columns = scores.topk(min(k, len(chunk)), dim=1, sorted=False)
        columns += start
        start += len(chunk)
        if places is not None:
            values, columns = torch.cat([best, values], dim=1), torch.cat([places, columns], dim=1)
            values, chosen = values.topk(min(k, values.shape[1]), dim=1, sorted=False)
            columns = columns.gather(1, chosen)
        best, places = values, columns
    return places


def scores_in_chunks(rows: Tensor, queue: Tensor, max_scores: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts of the queue (n, W), float32, and rows @ part.T, (M, n): neither of more than ``max_scores`` numbers, but
    for a single row (0: the whole queue)."""
    length = max(1, max_scores // max(rows.shape)) if max_scores else len(queue)
    for part in queue.split(length):
        chunk = at_least_float32(part)
        yield chunk, rows @ chunk.T


def at_least_float32(x: Tensor) -> Tensor:
    """float64 as it is, anything else as float32."""
    return x if x.dtype == torch.float64 else x.float()
