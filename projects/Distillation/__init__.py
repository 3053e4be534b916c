"""Distillation of any backbone into another one. Importing this package, as a config's IMPORTS does, registers it."""

from projects.Distillation import distillation  # noqa: F401
