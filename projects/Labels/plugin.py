"""Registers a look at images, test images that are learned from, the checks of boxes and of masks, and the layouts
``yolo`` and ``voc_xml``."""

from projects.Labels import image_checks, label_checks, leaks, voc_xml, yolo

__all__ = ["image_checks", "label_checks", "leaks", "voc_xml", "yolo"]
