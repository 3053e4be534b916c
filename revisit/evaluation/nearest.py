"""The nearest of many unit rows, exactly: all cosines are computed, a part at a time.

This is the place for neighbours of features. A training has a kernel of its own, ``nearest_rows`` of
modeling/losses/queue_scores.py, whose neighbours have no order.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

QUERIES, ROWS = 1024, 4096  # that are compared at a time
Values = Tensor | np.ndarray


class Nearest(NamedTuple):
    """The rows that are most similar to each of M queries, best first, of equals the first one."""

    places: Tensor  # (M, k) int64
    cosines: Tensor  # (M, k) float32; -inf where too few rows are left for this query


def nearest(queries: Values, rows: Values, count: int, *, without: tuple[Values, Values] | None = None) -> Nearest:
    """The ``count`` rows (N, C) of highest cosine with each query (M, C), or as many as there are; all have length 1.

    Cosines are computed in float64: then copies of a row have the same, whatever part they are in.

    Args:
        without: numbers (M,) of the queries and (N,) of the rows. Rows of a query's own number are left out.
    """
    queries = torch.as_tensor(queries)
    rows = torch.as_tensor(rows)
    nothing = torch.zeros(len(queries)), torch.ones(len(rows))
    own, theirs = (torch.as_tensor(numbers).to(rows.device) for numbers in without or nothing)
    parts = zip(queries.split(QUERIES), own.split(QUERIES), strict=True)
    found = [_nearest_of(some, numbers, rows, theirs, count) for some, numbers in parts]
    places, cosines = (torch.cat(each) for each in zip(*found, strict=True))
    is_known = (cosines != -torch.inf).any(dim=0)
    return Nearest(places[:, is_known], cosines[:, is_known])


def nearest_others(rows: Values, count: int, groups: Values | None = None) -> Nearest:
    """As ``nearest``, of each row (M, C) among those of other ``groups`` (M,), numbers; None: each is a group."""
    groups = torch.arange(len(rows)) if groups is None else groups
    return nearest(rows, rows, count, without=(groups, groups))


def _nearest_of(queries: Tensor, own: Tensor, rows: Tensor, theirs: Tensor, count: int) -> Nearest:
    cosines = torch.empty(len(queries), 0, device=rows.device)
    places = torch.empty(len(queries), 0, dtype=torch.int64, device=rows.device)
    columns = torch.arange(len(rows), device=rows.device)
    for some, numbers, of_some in zip(*(each.split(ROWS) for each in (rows, theirs, columns)), strict=True):
        compared = (queries.double() @ some.double().T).float()
        compared[own[:, None] == numbers] = -torch.inf
        cosines, chosen = highest(torch.cat([cosines, compared], dim=1), count)
        places = torch.cat([places, of_some.expand(len(queries), -1)], dim=1).gather(1, chosen)
    return Nearest(places, cosines)


def highest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` highest of each row of scores (M, N), or all, best first, and their columns, of equals the first
    one: (M, k) each."""
    count = min(count, scores.shape[1])
    values, columns = scores.topk(count, dim=1)
    is_open = (scores >= values[:, -1:]).sum(dim=1) > count  # of equals at the end it has taken any
    columns[is_open] = scores[is_open].argsort(dim=1, descending=True, stable=True)[:, :count]
    columns = columns.sort(dim=1).values
    values, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return values, columns.gather(1, order)
