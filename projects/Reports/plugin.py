"""Registers hooks of every training: first the alarm, then the speed, then the cost; and after an evaluation first what
keeps the best network and may end the run, then what sums up. Adds the writers wandb and mlflow."""

from projects.Reports import best_checkpoint, collapse, cost, start_scores, throughput, trackers  # noqa: F401
