"""Segmentation as in published codes that differ from the papers' texts."""
