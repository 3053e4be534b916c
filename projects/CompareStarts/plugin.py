"""Registers the layout ``held_out``."""

from projects.CompareStarts import held_out

__all__ = ["held_out"]
