"""Registers who reads images with more than 8 bits a sample, and the key INPUT.BIT_DEPTH."""

from projects.DeepPixels import bit_depth, deep_pixels  # noqa: F401
