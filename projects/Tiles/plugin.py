"""Registers data sets of windows, who reads these and looks at their labels, which of them a network sees, and who
scores what is found."""

from projects.Tiles import tile_checks, tiled_evaluation, tiled_sets, tiling_of_run, window_files  # noqa: F401
