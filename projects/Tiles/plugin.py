"""Registers data sets of windows, and who reads these."""

from projects.Tiles import tiled_sets, window_files  # noqa: F401
