"""Registers the layouts of other projects' weights, which ``tools/convert_to_d2.py --source`` lists."""

from projects.Weights import sources  # noqa: F401
