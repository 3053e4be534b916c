"""Adds the writers wandb and mlflow."""

from projects.Trackers import trackers as trackers
