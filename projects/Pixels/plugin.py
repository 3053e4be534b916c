"""Registers who reads images with more than 8 bits a sample, and the key INPUT.BIT_DEPTH."""

from projects.Pixels import bit_depth, channel_files, channels, reading, statistics  # noqa: F401
