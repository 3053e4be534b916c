"""Weighted k-nearest-neighbour classification with frozen features (Wu et al., 2018)."""

import torch
from torch import Tensor

from revisit.evaluation.features import Features


def knn_classify(bank: Features, rows: Tensor, *, k: int, temperature: float) -> Tensor:
    """Classify by a vote of the k most similar images of the bank, each weighing exp(cosine / temperature).

    Args:
        bank: labelled features, M rows.
        rows: (N, Cg) unit rows to classify.
        k: voters, at most M (more means all).
        temperature: > 0.

    Returns:
        (N,) int64 labels.
    """
    num_classes = int(bank.labels.max()) + 1
    predictions = []
    for chunk in rows.split(1024):
        similarity, neighbors = (chunk @ bank.rows.T).topk(min(k, len(bank.rows)), dim=1)
        votes = torch.zeros(len(chunk), num_classes, dtype=rows.dtype)
        votes.scatter_add_(1, bank.labels[neighbors], (similarity / temperature).exp())
        predictions.append(votes.argmax(dim=1))
    return torch.cat(predictions)


def knn_top1(bank: Features, test: Features, *, k: int, temperature: float) -> float:
    """Percent of ``test`` whose label the vote of ``bank`` finds."""
    predictions = knn_classify(bank, test.rows, k=k, temperature=temperature)
    return 100 * (predictions == test.labels).float().mean().item()
