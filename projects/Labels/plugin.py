"""Registers what looks at a data set before a run: at images, images that are learned from twice, test images that are
learned from, boxes and masks; and the layouts ``yolo`` and ``voc_xml``."""

from projects.Labels import doubles, image_checks, label_checks, leaks, voc_xml, yolo  # noqa: F401
