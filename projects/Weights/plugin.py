"""Registers the layouts of other projects' weights, which ``tools/convert_to_d2.py --source`` lists, and the names
``imagenet:NAME``."""

from projects.Weights import detectron2_layout, imagenet_packages, sources  # noqa: F401
