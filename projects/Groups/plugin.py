"""Importing this module registers the methods ``Grouped*``, their keys, and the check of NEIGHBORS.GROUPS."""

from projects.Groups import grouped_moco, image_groups  # noqa: F401
