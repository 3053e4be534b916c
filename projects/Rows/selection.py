"""Which images to label first: typical ones, ones that cover all others, or any.

Each way takes unit rows (N, C), which of them are labelled already (N,) bool, how many more are wanted, and a seed, and
returns the places of these in the order of choosing, int64.
"""

from collections.abc import Sequence

import numpy as np

from projects.Rows.k_means import k_means
from revisit.evaluation.nearest import nearest_others
from revisit.progress import progress

NEIGHBOURS = 20  # that typicality is measured by, as in the paper
MOST_CLUSTERS = 500  # as in the authors' code
AT_ONCE = 64  # labelled images that all others are compared with at a time
SMALL = 5  # images: as in the paper, whose clusters are large; of smaller ones see typical


def typical(rows: np.ndarray, labelled: np.ndarray, budget: int, seed: int) -> np.ndarray:
    """TypiClust (Hacohen, Dekel, Weinshall, Active Learning on a Budget, arXiv 2202.02794).

    As many clusters as there will be labelled images, of which those without one are taken, the largest first: the
    image of highest typicality, the inverse mean distance to its NEIGHBOURS nearest ones in the cluster. Once all
    clusters are covered, those with fewest come again. Clusters of fewer than SMALL images, or of less than half of the
    mean size where that is smaller, wait until all others are used up.
    """
    count = min(labelled.sum() + budget, MOST_CLUSTERS)
    _, clusters, sizes = np.unique(k_means(rows, count, seed).labels_, return_inverse=True, return_counts=True)
    count = len(sizes)
    is_small = sizes < min(SMALL, sizes.mean() / 2)
    covered = np.bincount(clusters[labelled], minlength=count)
    waiting = [_most_typical_first(rows, clusters == n, labelled) for n in range(count)]
    chosen = []
    while len(chosen) < budget:
        order = np.lexsort((-sizes, covered, is_small))
        cluster = next(n for n in order if waiting[n])
        chosen.append(waiting[cluster].pop(0))
        covered[cluster] += 1
    return np.array(chosen, int)


def _most_typical_first(rows: np.ndarray, members: np.ndarray, labelled: np.ndarray) -> list[int]:
    """The places of a cluster's images that are not labelled."""
    places = np.flatnonzero(members)
    cosines = nearest_others(rows[places], NEIGHBOURS).cosines.numpy()
    distances = np.sqrt(np.maximum(2 - 2 * cosines, 0)).sum(axis=1)  # of as many in every row
    order = places[np.argsort(distances, kind="stable")]
    return order[~labelled[order]].tolist()


def k_centre(rows: np.ndarray, labelled: np.ndarray, budget: int, seed: int) -> np.ndarray:
    """Greedy k-centre (Sener, Savarese, Active Learning for Convolutional Neural Networks: A Core-Set Approach, arXiv
    1708.00489): next is what is farthest from all that is chosen or labelled; without labels the first is drawn."""
    chosen = []
    nearest = np.full(len(rows), -2.0, np.float32)  # the highest cosine with what is chosen or labelled
    places = np.flatnonzero(labelled)
    for start in progress("comparing with labelled images", "block", range(0, len(places), AT_ONCE)):
        nearest = np.maximum(nearest, (rows @ rows[places[start : start + AT_ONCE]].T).max(axis=1))
    for _ in progress("choosing", "image", range(budget)):
        is_first = not chosen and not labelled.any()
        nearest[chosen] = nearest[labelled] = np.inf
        place = np.random.default_rng(seed).integers(len(rows)) if is_first else nearest.argmin()
        chosen.append(place)
        nearest = np.maximum(nearest, rows @ rows[place])
    return np.array(chosen, int)


def at_random(rows: np.ndarray, labelled: np.ndarray, budget: int, seed: int) -> np.ndarray:
    """Any that are not labelled, all alike."""
    return np.random.default_rng(seed).permutation(np.flatnonzero(~labelled))[:budget]


def without_duplicates(groups: Sequence[str], labelled: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """(N,) bool, which images there are to choose by: the labelled ones, and of each group without them the largest.

    Args:
        groups: of N images, such as near-duplicates.
        labelled: (N,) bool.
        pixels: (N,) of each image.
    """
    order = np.lexsort((-pixels, ~labelled))
    _, first = np.unique(np.array(groups)[order], return_index=True)
    stays = labelled.copy()
    stays[order[first]] = True
    return stays


SELECTIONS = {"typical": typical, "k-centre": k_centre, "random": at_random}
