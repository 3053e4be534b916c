"""Registers the methods beside the paper's, their keys, their pictures and checks, and the mapper of published code."""

from projects.Objectives import (
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

__all__ = ["against_start", "byol", "continued", "densecl", "diet", "distillation", "grouped_moco", "image_groups"]
__all__ += ["network_of_weights", "object_moco", "object_pictures", "published_mapper", "simclr", "swav"]
