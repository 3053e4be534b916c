"""Registers the names of ToyScenes' data sets."""

from projects.ToyScenes import data_sets  # noqa: F401
