"""Boxes and masks that nobody drew: found in the frozen features of a start."""
