"""Boxes in YOLO's text files and in XML files as Pascal VOC's, as dicts in COCO's format."""
