"""Importing this module registers ObjectMoCo, with its keys."""

from projects.Objects import object_moco  # noqa: F401
