"""Importing this module registers SimCLR, BYOL, SwAV, DIET and DenseCL, with their keys."""

from projects.Objectives import byol, densecl, diet, simclr, swav  # noqa: F401
