"""Importing this module registers SimCLR, BYOL, SwAV and DIET, with their keys."""

from projects.OtherObjectives import byol, diet, simclr, swav  # noqa: F401
