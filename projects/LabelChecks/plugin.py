"""Registers the checks of boxes and of masks."""

from projects.LabelChecks import checks as checks
