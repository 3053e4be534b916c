"""Registers data sets of windows and of labels on a map, who reads these and looks at their labels, which windows a
network sees, and who scores what is found."""

from projects.Tiles import (  # noqa: F401
    geo_sets,
    pixel_evaluation,
    scan_files,
    tile_checks,
    tiled_evaluation,
    tiled_sets,
    tiling_of_run,
    window_files,
)
