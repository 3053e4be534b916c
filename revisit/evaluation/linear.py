"""A linear classifier on frozen features: what a plane can tell apart."""

from __future__ import annotations

from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from revisit.evaluation.features import Features

REGULARIZATION = 0.1  # scikit-learn's C, on standardised features; the same for every run, tuned on none
MAX_ITERATIONS = 1000


def linear_top1(bank: Features, test: Features) -> float:
    """Percent of ``test`` that a logistic regression gets right which L-BFGS has fitted to ``bank``."""
    classifier = make_pipeline(
        StandardScaler(), LogisticRegression(C=REGULARIZATION, max_iter=MAX_ITERATIONS, random_state=0)
    )
    classifier.fit(bank.rows.numpy(), bank.labels.numpy())
    return 100 * float(classifier.score(test.rows.numpy(), test.labels.numpy()))
