"""Registers the layouts ``by_class``, ``held_out`` and ``picked``."""

from projects.CompareStarts import by_class, labelled_parts  # noqa: F401
