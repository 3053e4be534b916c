"""Importing this package registers the core's layouts of labels, and its names of data sets with Detectron2."""

from revisit.data.sources import catalog, coco_boxes, image_folders, pixel_datasets, voc_boxes

__all__ = ["catalog", "coco_boxes", "image_folders", "pixel_datasets", "voc_boxes"]

catalog.register_all()
