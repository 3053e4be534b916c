"""Registers looks on the model's device (DATALOADER.AUGMENT_ON_DEVICE)."""

from projects.LargeData import looks_on_device  # noqa: F401
