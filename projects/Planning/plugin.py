"""Adds what a run costs to a dry run, and the keys SOLVER.MINUTES and SOLVER.MEASURE_PRECISION."""

from projects.Planning import measuring, run_cost  # noqa: F401
