"""Classifiers and regressions of regions that leave out one image after the other, and scores with their intervals."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from revisit.evaluation.nearest import Nearest, nearest_others

NEIGHBORS = 10
STRENGTH = 0.01  # of the ridge, as a share of the number of rows, for features of variance 1
DRAWS = 1000  # of the bootstrap

WeightedScore = Callable[[np.ndarray], np.ndarray]  # a function of the images' weights (B, I) -> (B,)


class Interval(NamedTuple):
    """A score with the middle 95 % of its bootstrap over images."""

    value: float
    low: float
    high: float

    def widened(self, factor: float) -> "Interval":
        """Both ends so many times as far from the value."""
        low, high = (self.value + factor * (end - self.value) for end in (self.low, self.high))
        return Interval(self.value, low, high)


def votes_of(similar: Nearest, weights: Tensor, classes: Tensor) -> Tensor:
    """(M, K) float32: the sum of the ``weights`` (M, k) of the similar rows of each of the classes (M,) int64."""
    votes = weights.new_zeros(len(weights), int(classes.max()) + 1)
    return votes.scatter_add_(1, classes[similar.places], weights)


def knn_without_image(rows: Tensor, classes: Tensor, images: Tensor, k: int = NEIGHBORS) -> Tensor:
    """The class that most of the k most similar rows of *other* images have; of several the lowest.

    Args:
        rows: (M, C) float32, compared by their cosine.
        classes: (M,) int64 from 0 on.
        images: (M,) the number of each row's image, two or more.

    Returns:
        (M,) int64.
    """
    similar = nearest_others(F.normalize(rows, dim=1), k, images)
    votes = votes_of(similar, similar.cosines.isfinite().float(), classes)
    return torch.from_numpy(votes.numpy().argmax(axis=1))


def ridge_without_image(rows: Tensor, targets: Tensor, images: Tensor, weights: Tensor) -> Tensor:
    """What a ridge regression that has seen all *other* images says of each row.

    Features are standardised over all rows, and a constant one is added; the penalty is STRENGTH M. One inverse serves
    all images: without the rows of an image, residuals are (I - H)^-1 times those with them, H its block of the hat
    matrix.

    Args:
        rows: (M, C); ``targets`` (M, T); ``weights`` (M,) of the squared errors.

    Returns:
        (M, T) float64.
    """
    rows = rows.double()
    x = (rows - rows.mean(dim=0)) / rows.std(dim=0, correction=0).clamp_min(1e-12)
    root = weights.double().sqrt()[:, None]
    x, y = torch.cat([x, torch.ones(len(x), 1)], dim=1) * root, targets.double() * root
    inverse = torch.linalg.inv(x.T @ x + STRENGTH * len(x) * torch.eye(x.shape[1], dtype=x.dtype))
    coefficients, predicted = inverse @ (x.T @ y), torch.empty_like(y)
    for number in images.unique():
        own = images == number
        hat = x[own] @ inverse @ x[own].T
        residual = torch.eye(len(hat), dtype=x.dtype) - hat
        predicted[own] = torch.linalg.solve(residual, x[own] @ coefficients - hat @ y[own])
    return predicted / root


def ridge_classes(rows: Tensor, classes: Tensor, images: Tensor) -> Tensor:
    """(M,) the classes by a ridge regression of +-1, in which all classes weigh alike."""
    one_hot = F.one_hot(classes)
    weights = len(classes) / (one_hot.shape[1] * one_hot.sum(dim=0).clamp_min(1))
    return ridge_without_image(rows, 2 * one_hot - 1, images, weights[classes]).argmax(dim=1)


def balanced_accuracy(predicted: Tensor, classes: Tensor, images: Tensor) -> WeightedScore:
    """Percent of a class that is found, the mean over classes."""
    places = images.unique(return_inverse=True)[1]
    totals = torch.zeros(int(places.max()) + 1, int(classes.max()) + 1, dtype=torch.float64)
    hits = totals.clone()
    totals.index_put_((places, classes), torch.ones(len(classes), dtype=torch.float64), accumulate=True)
    hits.index_put_((places, classes), (predicted == classes).double(), accumulate=True)

    def score(weights: np.ndarray) -> np.ndarray:
        count = weights @ totals.numpy()
        shares = np.divide(weights @ hits.numpy(), count, out=np.full(count.shape, np.nan), where=count > 0)
        return 100 * np.nanmean(shares, axis=1)

    return score


def root_mean_square(predicted: Tensor, targets: Tensor, images: Tensor) -> WeightedScore:
    """The root of the mean squared error."""
    places = images.unique(return_inverse=True)[1]
    count = torch.bincount(places).double().numpy()
    errors = torch.bincount(places, weights=(predicted - targets).double() ** 2).numpy()
    return lambda weights: np.sqrt(weights @ errors / (weights @ count))


def with_interval(score: WeightedScore, num_images: int) -> Interval:
    """A score of all images, and its bootstrap's interval; always the same draws."""
    drawn = np.random.default_rng(0).multinomial(num_images, np.full(num_images, 1 / num_images), size=DRAWS)
    low, high = np.percentile(score(drawn.astype(float)), (2.5, 97.5))
    return Interval(float(score(np.ones((1, num_images)))[0]), float(low), float(high))
