"""Registers the names of classification data sets, and what is evaluated while pretraining: a linear classifier
(KNN_EVAL.LINEAR), and the scores without labels (MONITOR)."""

from projects.FrozenEvaluations import data_sets, monitor, while_pretraining  # noqa: F401
