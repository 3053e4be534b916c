"""Registers the layout ``shards``, what reads shards at URLs ahead, OUTPUT_SYNC, and looks on the model's device."""

from projects.LargeData import looks_on_device, output_sync, ranges_ahead, shards  # noqa: F401
