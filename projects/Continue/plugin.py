"""Registers the methods ``Continued*``, the keys CONTINUE.* and KEEP.*, and the end of a run that continues."""

from projects.Continue import against_start, continued, network_of_weights  # noqa: F401
