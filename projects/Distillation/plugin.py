"""Registers the method Distillation, with its keys DISTILLATION.*."""

from projects.Distillation import distillation as distillation
