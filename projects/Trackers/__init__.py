"""Weights & Biases and MLflow as writers of a run's metrics."""
