"""Pretraining that continues from good weights without losing what they know."""
