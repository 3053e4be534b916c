"""Clusters of clusters, and a part of the images that has as many of each as there are (Vo et al., Automatic Data
Curation for Self-Supervised Learning: A Clustering-Based Approach, arXiv 2405.15613).
"""

from bisect import bisect_right

import numpy as np
from tqdm import tqdm

from projects.Rows.k_means import k_means
from revisit.progress import progress

SEED = 0
RESAMPLINGS = 10  # of each level, as in the paper


def clustered(rows: np.ndarray, counts: list[int]) -> list[np.ndarray]:
    """Hierarchical k-means with resampling: ``counts[0]`` clusters of the rows (N, C), ``counts[1]`` of their centres,
    and so on.

    Centres of k-means lie close where rows do. To spread them over all that there is, each level is fitted again to
    those rows alone that are nearest to each centre, half of the mean size of a cluster, RESAMPLINGS times.

    Returns:
        For each level the cluster of each image, (N,) int64; every cluster has at least one.
    """
    levels, points, of_images = [], rows, np.arange(len(rows))
    with progress("clustering", "fit", total=len(counts) * (RESAMPLINGS + 1)) as bar:
        for count in counts:
            labels, points = _level(points, min(count, len(points)), bar)
            of_images = labels[of_images]
            levels.append(of_images)
    return levels


def _level(points: np.ndarray, count: int, bar: tqdm) -> tuple[np.ndarray, np.ndarray]:
    """Labels (N,) of the points and centres (k, C), where k is ``count``, or less where points are alike."""
    chosen = points
    for _ in range(RESAMPLINGS + 1):
        means = k_means(chosen, count, SEED)
        labels = means.predict(points)
        distances = means.transform(points)[np.arange(len(points)), labels]
        chosen = points[_nearest(labels, distances, max(1, len(points) // (2 * count)))]
        bar.update()
    used, labels = np.unique(labels, return_inverse=True)
    return labels, means.cluster_centers_[used]


def _nearest(labels: np.ndarray, distances: np.ndarray, count: int) -> np.ndarray:
    """The places of the ``count`` points of each cluster that are nearest to its centre."""
    order = np.lexsort((distances, labels))
    in_order = labels[order]
    ranks = np.arange(len(labels)) - np.searchsorted(in_order, in_order)
    return order[ranks < count]


def balanced(levels: list[np.ndarray], count: int) -> np.ndarray:
    """Places of ``count`` images, sorted: from the coarsest level down, each cluster's clusters share as equally as
    their numbers of images allow, and a cluster of the finest level draws at random (the paper's section 3.3).

    ``levels`` are those of ``clustered``.
    """
    rng = np.random.default_rng(SEED)
    return np.sort(_drawn(np.arange(len(levels[0])), levels, count, rng))


def _drawn(places: np.ndarray, levels: list[np.ndarray], count: int, rng: np.random.Generator) -> np.ndarray:
    if not levels:
        return rng.permutation(places)[:count]
    *finer, coarsest = levels
    _, children = np.unique(coarsest[places], return_inverse=True)
    shares = equal_shares(np.bincount(children), count, rng)
    return np.concatenate([_drawn(places[children == n], finer, share, rng) for n, share in enumerate(shares)])


def equal_shares(sizes: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """How many each gives of ``total``, at most its size: as equally as that allows; who gives one more is drawn."""
    level = bisect_right(range(sizes.max() + 1), total, key=lambda level: np.minimum(sizes, level).sum()) - 1
    shares = np.minimum(sizes, level)
    with_more = rng.permutation(np.flatnonzero(sizes > level))
    shares[with_more[: total - shares.sum()]] += 1
    return shares
