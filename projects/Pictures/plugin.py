"""Registers the pictures of a dry run, of a batch whose loss is not finite, and of neighbours while pretraining."""

from projects.Pictures import pretraining_sheets  # noqa: F401
