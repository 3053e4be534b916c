"""Registers who reads images that are no photographs of 8 bits, the keys that say what they mean, and their look."""

from projects.Pixels import bit_depth, channel_files, channel_looks, channels, reading, statistics  # noqa: F401
