"""What features say without labels: the directions that they fill, how views of an image and different images lie to
each other, and how many neighbours stay the same while the network learns."""

import math

import torch
from torch import Tensor

EPSILON = 1e-7  # RankMe's, of each share
CHUNK = 1024  # rows


def rankme(rows: Tensor) -> float:
    """Effective rank of features (M, Cg): from 1, where all point the same way, to min(M, Cg); of no numbers NaN.

    exp(-sum_n p_n log p_n), where p_n = s_n / sum s + 1e-7 of the singular values s (Garrido et al., RankMe, ICML 2023,
    Equations 1 and 2). In float64. There the rows are embeddings as they are, here they have length 1.
    """
    if not rows.isfinite().all():
        return math.nan
    values = torch.linalg.svdvals(rows.double())
    shares = values / values.sum() + EPSILON
    entropy = -(shares * shares.log()).sum()
    return entropy.exp().item()


def alignment(one: Tensor, other: Tensor) -> float:
    """Mean squared distance of unit rows (M, Cg) of two views of the same images: from 0, where both views of every
    image agree, to 4 (Wang and Isola, ICML 2020, Section 4.1, with alpha = 2)."""
    squared_distances = (one.double() - other.double()).square().sum(dim=1)
    return squared_distances.mean().item()


def uniformity(rows: Tensor) -> float:
    """Logarithm of the mean of exp(-2 |x - y|^2) over pairs of different images, of unit rows (M, Cg), M > 1.

    0 where all are the same; near -4 where they are spread evenly over a sphere of many dimensions (Wang and Isola,
    ICML 2020, Section 4.1, with t = 2).
    """
    rows = rows.double()
    total = 0.0
    for start in range(0, len(rows), CHUNK):
        exponents = 4 * (rows[start : start + CHUNK] @ rows.T) - 4  # -2 |x - y|^2 of unit rows
        exponents.diagonal(start).fill_(-math.inf)  # of a row with itself
        total += exponents.exp().sum().item()
    num_pairs = len(rows) * (len(rows) - 1)
    return math.log(total / num_pairs)


def neighbor_stability(before: Tensor, now: Tensor) -> float:
    """Percent of the nearest (M, k) rows of an evaluation that are those of another one too, in any order."""
    same = sum(torch.isin(*pair).sum().item() for pair in zip(before, now, strict=True))
    return 100 * same / now.numel()
