"""Registers the methods beside the paper's, their keys, their pictures and checks, and the mapper of published code."""

from projects.Objectives import (  # noqa: F401
    against_start,
    byol,
    continued,
    densecl,
    diet,
    distillation,
    grouped_moco,
    image_groups,
    network_of_weights,
    object_moco,
    object_pictures,
    published_mapper,
    simclr,
    swav,
)
