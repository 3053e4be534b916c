"""Weights: which there are, what is in a file, and how they get into a network."""

RANDOM = "random"  # a name of weights that are drawn from SEED
