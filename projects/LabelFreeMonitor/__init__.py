"""Judges the features of a pretraining without labels."""
