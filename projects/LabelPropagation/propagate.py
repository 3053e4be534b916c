"""Labels follow features through a video: every cell takes them from the most similar cells of earlier frames."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

TILE = 16  # cells on a side of the part of a frame that is labelled at once, which bounds the memory


@dataclass(frozen=True)
class Protocol:
    """See ``config.py`` for what each number means."""

    num_context: int
    radius: float  # cells
    top_k: int
    temperature: float


class LabelPropagation:
    """Follows soft labels from the first frame on (projects/LabelPropagation/README.md).

    A frame's cells look at the first frame, wherever, and at the previous ``num_context`` ones within ``radius``; as
    long as there are fewer, the first one stands in for them, and its copies compete. The ``top_k`` most similar
    cells of all vote with their soft labels.

    Args:
        features: (C, h, w) of the first frame; unit vectors, here and in ``step``.
        labels: (L, h, w) float32, what is where in it; they sum to 1 over L.
    """

    def __init__(self, features: Tensor, labels: Tensor, protocol: Protocol):
        self._protocol = protocol
        # Cells in rows, so that a window of cells is a matrix.
        self._first = features.permute(1, 2, 0).contiguous()
        self._first_labels = labels.permute(1, 2, 0).contiguous()
        copies = (protocol.num_context, 1, 1, 1)
        self._context = self._first.repeat(copies)  # (N, h, w, C), a ring: its order means nothing
        self._context_labels = self._first_labels.repeat(copies)
        self._oldest = 0

    def step(self, features: Tensor) -> Tensor:
        """The next frame's labels, (L, h, w) float32, from its (C, h, w) features."""
        cells = features.permute(1, 2, 0).contiguous()
        labels = torch.empty_like(self._first_labels)
        height, width = labels.shape[:2]
        for top in range(0, height, TILE):
            for left in range(0, width, TILE):
                rows, columns = slice(top, min(top + TILE, height)), slice(left, min(left + TILE, width))
                labels[rows, columns] = self._vote(cells, rows, columns)
        if len(self._context):
            self._context[self._oldest], self._context_labels[self._oldest] = cells, labels
            self._oldest = (self._oldest + 1) % len(self._context)
        return labels.permute(2, 0, 1)

    def _vote(self, cells: Tensor, rows: slice, columns: slice) -> Tensor:
        """(th, tw, L): the labels of a tile."""
        protocol, (height, width, channels) = self._protocol, cells.shape
        queries = cells[rows, columns].reshape(-1, channels)
        near_rows, near_columns = (
            slice(max(part.start - reach, 0), min(part.stop + reach, size))
            for part, size, reach in ((rows, height, self._reach), (columns, width, self._reach))
        )
        near = self._context[:, near_rows, near_columns].reshape(-1, channels)
        similarity = queries @ near.T
        distance = squared_distance(rows, columns, near_rows, near_columns).to(similarity.device)
        far = distance >= protocol.radius**2
        similarity.masked_fill_(far.repeat(1, len(self._context)), -math.inf)
        similarity = torch.cat([queries @ self._first.flatten(0, 1).T, similarity], dim=1)
        similarity, voters = similarity.topk(min(protocol.top_k, similarity.shape[1]), dim=1)
        weights = F.softmax(similarity / protocol.temperature, dim=1)
        num_labels = self._first_labels.shape[2]
        near_labels = self._context_labels[:, near_rows, near_columns].reshape(-1, num_labels)
        candidates = torch.cat([self._first_labels.flatten(0, 1), near_labels])
        labels = torch.einsum("qk,qkl->ql", weights, candidates[voters])
        return labels.view(rows.stop - rows.start, columns.stop - columns.start, num_labels)

    @property
    def _reach(self) -> int:
        """How many rows or columns apart two cells may be."""
        return math.ceil(self._protocol.radius) - 1


def squared_distance(rows: slice, columns: slice, near_rows: slice, near_columns: slice) -> Tensor:
    """(Q, K) squared Euclidean distances, in cells, of the cells of two rectangles of one map."""

    def cells(y: slice, x: slice) -> Tensor:
        return torch.cartesian_prod(torch.arange(y.start, y.stop), torch.arange(x.start, x.stop))

    here, there = cells(rows, columns), cells(near_rows, near_columns)
    return (here[:, None] - there[None]).square().sum(dim=2)
