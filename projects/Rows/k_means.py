"""K-means on rows, some of which may be alike."""

import warnings

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning


def k_means(rows: np.ndarray, count: int, seed: int) -> KMeans:
    """``count`` clusters of (N, C) from one start by k-means++; some are empty where fewer rows differ."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # which says that some are empty
        return KMeans(min(count, len(rows)), n_init=1, random_state=seed).fit(rows)
