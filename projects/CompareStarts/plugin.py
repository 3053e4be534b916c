"""Registers the layouts ``held_out`` and ``picked``."""

from projects.CompareStarts import labelled_parts

__all__ = ["labelled_parts"]
