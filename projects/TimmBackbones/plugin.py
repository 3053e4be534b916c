"""Registers the backbones ``build_timm_*``, their keys MODEL.TIMM.*, and their description."""

from projects.TimmBackbones import backbone, description  # noqa: F401
