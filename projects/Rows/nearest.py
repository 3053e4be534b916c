"""The nearest of many unit rows, exactly: all cosines are computed, a part at a time."""

import numpy as np
import torch

from revisit.modeling.losses.queue_scores import nearest_rows

QUERIES = 1024  # rows that are compared with all others at a time


def nearest(rows: np.ndarray, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` rows (N, C) of highest cosine of each query (M, C), best first, of equals the first one.

    Rows and queries are float32 of length 1. Memory is that of the result and of some million cosines.

    Returns:
        indices (M, k) int64 and cosines (M, k) float32, where k is ``count``, or N if that is less.
    """
    bank = torch.from_numpy(rows)
    count = min(count, len(rows))
    indices = np.empty((len(queries), count), np.int64)
    cosines = np.empty((len(queries), count), np.float32)
    for start in range(0, len(queries), QUERIES):
        part = torch.from_numpy(queries[start : start + QUERIES])
        columns = nearest_rows(part, bank, count).sort(dim=1).values
        similar = (bank[columns] * part[:, None]).sum(dim=2)
        order = similar.argsort(dim=1, descending=True, stable=True)
        indices[start : start + QUERIES] = columns.gather(1, order).numpy()
        cosines[start : start + QUERIES] = similar.gather(1, order).numpy()
    return indices, cosines


def neighbours(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """As ``nearest``, of every row among the others: itself is left out."""
    indices, cosines = nearest(rows, rows, count + 1)
    own = np.arange(len(rows))[:, None]
    is_other = indices != own
    is_other[is_other.all(axis=1), -1] = False  # of more rows that are all alike than were asked for
    shape = (len(rows), indices.shape[1] - 1)
    return indices[is_other].reshape(shape), cosines[is_other].reshape(shape)
