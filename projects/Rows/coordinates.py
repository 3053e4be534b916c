"""Places of rows on a map, so that what is similar lies together."""

from collections.abc import Callable

import numpy as np

from revisit.plugins import require_package

SEED = 0
COMPONENTS = 50  # to which rows are reduced before t-SNE or UMAP
PERPLEXITY = 30


def coordinates(rows: np.ndarray, how: str) -> np.ndarray:
    """(N, 2) float in [0, 1] of rows (N, C), by one of MAPS; the same for the same rows.

    Raises:
        UserError: UMAP is not installed.
    """
    if not np.ptp(rows, axis=0).any():  # all the same, of which t-SNE dies
        return np.zeros((len(rows), 2))
    places = MAPS[how](rows)
    low, high = places.min(axis=0), places.max(axis=0)
    return (places - low) / np.maximum(high - low, 1e-12)


def _pca(rows: np.ndarray, components: int = 2) -> np.ndarray:
    from sklearn.decomposition import PCA  # not at start-up: it takes a second

    count = min(components, *rows.shape)
    reduced = PCA(count, random_state=SEED).fit_transform(rows)
    return np.pad(reduced, ((0, 0), (0, max(0, 2 - count))))


def _tsne(rows: np.ndarray) -> np.ndarray:
    from sklearn.manifold import TSNE

    reduced = _pca(rows, COMPONENTS)
    if len(rows) < 5:  # too few for t-SNE
        return reduced[:, :2]
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    verbose = 2 if len(rows) > 2000 else 0  # prints its progress
    return TSNE(perplexity=perplexity, init="pca", random_state=SEED, verbose=verbose).fit_transform(reduced)


def _umap(rows: np.ndarray) -> np.ndarray:
    problem = "--how umap needs umap-learn: pip install umap-learn, or take tsne or pca"
    umap_learn = require_package("umap.umap_", problem)  # PyPI's package umap is another one
    return umap_learn.UMAP(random_state=SEED).fit_transform(_pca(rows, COMPONENTS))


MAPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"tsne": _tsne, "pca": _pca, "umap": _umap}
