"""Swapped labels: what the boxes of other images say of the class of a box, by two voters of equal weight.

- The most similar boxes vote; a vote weighs exp(cosine / TEMPERATURE) (Wu et al., 2018).
- A ridge regression of +-1 for each class, leave-one-image-out, clipped to that range. It sees directions in which
  classes differ though other things matter more to the cosine.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from projects.Rows.leave_image_out import ridge_without_image, votes_of
from revisit.evaluation.nearest import nearest_others

NEIGHBORS = 20
TEMPERATURE = 0.07


class Vote(NamedTuple):
    """Of N labels."""

    support: np.ndarray  # (N, K) float64, 0..1, for each class
    nearest: np.ndarray  # (N, k) int64, the most similar rows of other images, best first

    def others(self, classes: np.ndarray) -> np.ndarray:
        """(N,) int: the class with most support other than the label, which is one of ``classes`` (N,)."""
        without = self.support.copy()
        without[np.arange(len(classes)), classes] = -1
        return without.argmax(axis=1)

    def suspicion(self, classes: np.ndarray) -> np.ndarray:
        """(N,) 0..1: (1 + support of the other class - support of the label) / 2; beyond 0.5 the other has more."""
        place = np.arange(len(classes))
        margin = self.support[place, self.others(classes)] - self.support[place, classes]
        return (1 + margin) / 2


def vote(rows: np.ndarray, classes: np.ndarray, images: np.ndarray, k: int = NEIGHBORS) -> Vote:
    """Ask the ``k`` most similar rows of other images, and a ridge regression of all of these.

    Args:
        rows: (N, C) float32 of length 1.
        classes: (N,) int from 0 on.
        images: (N,) int, the number of each row's image, two or more.
    """
    tensors = [torch.from_numpy(values) for values in (rows, classes, images)]
    similar = nearest_others(rows, k, images)
    weights = (similar.cosines / TEMPERATURE).softmax(dim=1)
    shares = votes_of(similar, weights, tensors[1]).double()
    support = (shares + by_ridge(*tensors)) / 2
    return Vote(support.numpy(), similar.places.numpy())


def by_ridge(rows: torch.Tensor, classes: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """(N, K) float64, 0..1: regressions of +-1 from the other images' rows, moved to that range."""
    targets = 2 * F.one_hot(classes) - 1
    predicted = ridge_without_image(rows, targets, images, torch.ones(len(rows)))
    return ((predicted + 1) / 2).clamp(0, 1)
