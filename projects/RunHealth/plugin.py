"""Registers hooks of every training: first the alarm, then the speed, then the cost."""

from projects.RunHealth import collapse, cost, throughput

__all__ = ["collapse", "cost", "throughput"]
