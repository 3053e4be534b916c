"""Registers a look at images, and the checks of boxes and of masks."""

from projects.DataChecks import image_checks, label_checks

__all__ = ["image_checks", "label_checks"]
