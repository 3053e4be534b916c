"""Logistic regression with a path of regularisations: each fit starts from the one before."""

import logging
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from tqdm import tqdm

from revisit.viz.curves import saved_plot

from .targets import Labelled, columns, eleven_point_ap

logger = logging.getLogger(__name__)


class PathPoint(NamedTuple):
    """One lambda of the path."""

    strength: float  # lambda
    score: float  # percent, on the validation images
    iterations: int  # of L-BFGS, the most of all classifiers
    converged: bool


class Classifier:
    """Multinomial logistic regression, or one of two classes for each column of several labels.

    ``fit`` starts from the coefficients of the call before, for ``max_iter`` iterations of L-BFGS at most.
    """

    def __init__(self, max_iter: int, difficult_is_absent: bool):
        self._max_iter, self._difficult_is_absent = max_iter, difficult_is_absent
        self._models: list[LogisticRegression] = []

    def fit(self, rows: np.ndarray, targets: np.ndarray, strength: float) -> tuple[int, bool]:
        """Fit to (N, C) features; how many iterations it took, and whether it converged."""
        several = targets.ndim > 1
        problems = list(columns(rows, targets, self._difficult_is_absent)) if several else [(rows, targets)]
        if not self._models:
            self._models = [LogisticRegression(max_iter=self._max_iter, warm_start=True) for _ in problems]
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", ConvergenceWarning)  # reported once for the whole path
            for model, problem in zip(self._models, problems, strict=True):
                model.set_params(C=1 / strength).fit(*problem)
        failed = any(issubclass(warning.category, ConvergenceWarning) for warning in raised)
        return max(int(model.n_iter_.max()) for model in self._models), not failed

    def score(self, rows: np.ndarray, targets: np.ndarray) -> float:
        """Percent: top-1, or the mean of the classes' 11-point AP."""
        if targets.ndim == 1:
            return 100 * float(np.mean(self._models[0].predict(rows) == targets))
        pairs = zip(self._models, columns(rows, targets, self._difficult_is_absent), strict=True)
        scores = [eleven_point_ap(model.decision_function(rows), present) for model, (rows, present) in pairs]
        return float(np.mean(scores))

    def weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight (classes, C) and bias (classes,)."""
        weight, bias = (np.concatenate([getattr(m, name) for m in self._models]) for name in ("coef_", "intercept_"))
        if len(self._models) == 1 and len(weight) == 1:  # two classes: scikit-learn has the second against the first
            weight, bias = (np.concatenate([-part / 2, part / 2]) for part in (weight, bias))
        return torch.from_numpy(weight), torch.from_numpy(bias)


def fit_path(
    classifier: Classifier, train: Labelled, validation: Labelled, lambdas: tuple[float, float, float]
) -> list[PathPoint]:
    """Fit ``train`` for each lambda in turn, and score ``validation``.

    Args:
        lambdas: lowest, highest and number, log-spaced; the path starts with the strongest, which is the easiest fit.
    """
    low, high, count = lambdas
    strengths, path = np.logspace(np.log10(high), np.log10(low), int(count)), []
    for strength in tqdm(strengths.tolist(), unit="lambda", desc="logistic regression"):
        iterations, converged = classifier.fit(*train, strength)
        path.append(PathPoint(strength, classifier.score(*validation), iterations, converged))
    lost = [f"{point.strength:.1e}" for point in path if not point.converged]
    if lost:
        names = ", ".join(lost)
        logger.warning(f"{len(lost)} of {len(path)} fits did not converge: lambda {names}; raise LINEAR.MAX_ITER")
    return path


def split_off(targets: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of (training, validation): a seeded ``share`` of the images, of each class where it has two or more."""
    rng = np.random.default_rng(seed)
    if targets.ndim > 1:
        order = rng.permutation(len(targets))
        held = order[: round(share * len(order))]
    else:
        classes = [rng.permutation(np.flatnonzero(targets == label)) for label in np.unique(targets)]
        counts = [min(max(round(share * len(members)), 1), len(members) - 1) for members in classes]
        held = np.concatenate([members[:count] for members, count in zip(classes, counts, strict=True)])
    return np.setdiff1d(np.arange(len(targets)), held), np.sort(held)


def plot_path(path: list[PathPoint], score: str, output: Path) -> None:
    """The validation score against lambda; fits that did not converge are hollow."""
    with saved_plot(output, size=(6, 3.6)) as (axis,):
        axis.plot([point.strength for point in path], [point.score for point in path], color="C0", alpha=0.5)
        for converged, face, label in ((True, "C0", "converged"), (False, "white", "stopped at LINEAR.MAX_ITER")):
            points = [(point.strength, point.score) for point in path if point.converged == converged]
            if points:
                axis.scatter(*zip(*points, strict=True), color="C0", facecolor=face, label=label)
        axis.set(xscale="log", xlabel="lambda", ylabel=f"{score} on the validation images (%)")
