"""Registers the layout ``class_agnostic``."""

from projects.Discover import class_agnostic  # noqa: F401
