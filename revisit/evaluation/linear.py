"""A linear classifier on frozen features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from revisit.evaluation.features import Features

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

REGULARIZATION = 0.1  # scikit-learn's C, on standardised features; the same for every run, tuned on none
MAX_ITERATIONS = 1000


def fit_linear(bank: Features) -> Pipeline:
    """A logistic regression that L-BFGS has fitted to ``bank``."""
    # Seconds to import, which every process of every training would wait for.
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regression = LogisticRegression(C=REGULARIZATION, max_iter=MAX_ITERATIONS, random_state=0)
    return make_pipeline(StandardScaler(), regression).fit(bank.rows.numpy(), bank.labels.numpy())


def linear_top1(classifier: Pipeline, test: Features) -> float:
    """Percent of ``test`` that the classifier gets right."""
    return 100 * float(classifier.score(test.rows.numpy(), test.labels.numpy()))
