"""Registers a look at images before a run and in a dry run."""

from projects.ImageChecks import checks as checks
