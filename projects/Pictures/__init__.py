"""Sheets of tiles, plots, and the pictures of a pretraining."""
