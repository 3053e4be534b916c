"""Importing this module registers ObjectMoCo, with its keys and its gallery."""

from projects.Objects import object_moco, pictures  # noqa: F401
