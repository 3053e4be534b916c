"""Labels follow features through a video: every cell takes them from the most similar cells of earlier frames."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from detectron2.config import CfgNode

TILE = 16  # cells on a side of the part of a frame that is labelled at once, which bounds the memory


class LabelPropagation:
    """Follows soft labels from the first frame on (projects/LabelPropagation/README.md).

    A frame's cells look at the first frame, wherever, and at the previous NUM_CONTEXT ones within RADIUS; as long as
    there are fewer, the first one stands in for them, and its copies compete. The TOP_K most similar cells of all vote
    with their soft labels.

    Args:
        features: (C, h, w) of the first frame; unit vectors, here and in ``step``.
        labels: (L, h, w) float32, what is where in it; they sum to 1 over L.
        options: LABEL_PROPAGATION.
    """

    def __init__(self, features: Tensor, labels: Tensor, options: CfgNode):
        self._options = options
        # Cells in rows, so that a window of cells is a matrix.
        self._first, self._first_labels = (map_.permute(1, 2, 0).contiguous() for map_ in (features, labels))
        copies = (options.NUM_CONTEXT, 1, 1, 1)
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
        options, (height, width, channels) = self._options, cells.shape
        queries = cells[rows, columns].reshape(-1, channels)
        reach = math.ceil(options.RADIUS) - 1  # how many rows or columns apart two cells may be
        near_rows, near_columns = (
            slice(max(part.start - reach, 0), min(part.stop + reach, size))
            for part, size in ((rows, height), (columns, width))
        )
        near = self._context[:, near_rows, near_columns].reshape(-1, channels)
        similarity = queries @ near.T
        distance = _squared_gaps(rows, near_rows)[:, None, :, None] + _squared_gaps(columns, near_columns)[:, None]
        far = (distance >= options.RADIUS**2).view(len(queries), -1).to(similarity.device)
        similarity.masked_fill_(far.repeat(1, len(self._context)), -math.inf)
        similarity = torch.cat([queries @ self._first.flatten(0, 1).T, similarity], dim=1)
        similarity, voters = similarity.topk(min(options.TOP_K, similarity.shape[1]), dim=1)
        weights = F.softmax(similarity / options.TEMPERATURE, dim=1)
        num_labels = self._first_labels.shape[2]
        near_labels = self._context_labels[:, near_rows, near_columns].reshape(-1, num_labels)
        candidates = torch.cat([self._first_labels.flatten(0, 1), near_labels])
        labels = torch.einsum("qk,qkl->ql", weights, candidates[voters])
        return labels.view(rows.stop - rows.start, columns.stop - columns.start, num_labels)


def _squared_gaps(cells: slice, others: slice) -> Tensor:
    """(n, m) int64: the squares of how far each row or column is from each other one."""
    return (torch.arange(cells.start, cells.stop)[:, None] - torch.arange(others.start, others.stop)).square()
