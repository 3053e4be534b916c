"""Registers what follows an evaluation: first what keeps the best network and may end the run, then what sums up."""

from projects.BestNetwork import best_checkpoint, start_scores

__all__ = ["best_checkpoint", "start_scores"]
