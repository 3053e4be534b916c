"""Registers the layouts ``held_out`` and ``picked``."""

from projects.CompareStarts import labelled_parts  # noqa: F401
