"""Registers the layouts of other projects' weights, which ``tools/convert_to_d2.py --source`` lists, the names
``imagenet:NAME`` and ``timm:NAME``, and timm's networks: the backbones ``build_timm_*``, their keys MODEL.TIMM.*."""

from projects.Weights import detectron2_layout, hub, imagenet_packages, sources, timm_backbone, timm_description  # noqa: F401
