"""Registers the layout ``class_agnostic``."""

from projects.Discover import class_agnostic

__all__ = ["class_agnostic"]
