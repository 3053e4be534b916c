"""Registers the backbones ``build_timm_*``, their keys MODEL.TIMM.*, their description, and the names ``timm:NAME``."""

from projects.TimmBackbones import backbone, description, hub  # noqa: F401
