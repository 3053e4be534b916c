"""Registers a look at images, test images that are learned from, and the checks of boxes and of masks."""

from projects.Labels import image_checks, label_checks, leaks

__all__ = ["image_checks", "label_checks", "leaks"]
