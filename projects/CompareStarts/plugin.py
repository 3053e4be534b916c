"""Registers the layouts ``held_out`` and ``picked``."""

from projects.CompareStarts import held_out, picked

__all__ = ["held_out", "picked"]
