"""Contrastive losses: as the formulas are written, and in chunks of the queue."""

from revisit.modeling.losses.contrastive import contrastive_losses

from revisit.modeling.losses.chunked import chunked_losses  # isort: skip

__all__ = ["chunked_losses", "contrastive_losses"]
