"""Registers the layout ``shards`` and looks on the model's device (DATALOADER.AUGMENT_ON_DEVICE)."""

from projects.LargeData import looks_on_device, shards

__all__ = ["looks_on_device", "shards"]
