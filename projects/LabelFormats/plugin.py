"""Registers the layouts ``yolo`` and ``voc_xml``."""

from projects.LabelFormats import voc_xml, yolo

__all__ = ["voc_xml", "yolo"]
