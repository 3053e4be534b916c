"""Registers the names of classification data sets, and a linear classifier while pretraining (KNN_EVAL.LINEAR)."""

from projects.FrozenEvaluations import data_sets, while_pretraining

__all__ = ["data_sets", "while_pretraining"]
