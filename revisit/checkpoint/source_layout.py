"""The registry of the kinds of files that a backbone is converted from, and what each of them says of itself."""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from revisit.checkpoint.reading import clipped, tensors_of
from revisit.modeling.backbone.description import BackboneDescription, Flags, Tensors

from fvcore.common.registry import Registry

SOURCE_LAYOUT_REGISTRY = Registry("SOURCE_LAYOUT")


class FoundBackbone(NamedTuple):
    """A backbone in a checkpoint."""

    tensors: Tensors  # under its own names, such as ``res2.0.conv1.weight``
    description: BackboneDescription
    flags: Flags  # that the tensors are valid under
    notes: tuple[str, ...] = ()  # in words, what was taken, left out or assumed


class SourceLayout:
    """A kind of file. ``SOURCE_LAYOUT_REGISTRY.register()`` decorates the subclass that fills in its values."""

    NAME = ""  # as ``--source`` takes it
    ORDER = 1  # layouts are asked in rising order whether they recognise a file; of equal ones the first registered
    EXPECTED = ""  # how such a file looks, in words for the message about one that nobody recognises
    SHARED_WITH = ""  # in words, whose files look the same and are recognised as these; "" for nobody's
    LICENCE = ""  # of the project's published weights; "" if none is on record

    def recognises(self, checkpoint: dict, stated: Flags) -> bool:
        """Whether a loaded checkpoint is of this kind; ``stated`` are flags that the user has given."""
        raise NotImplementedError

    def find_backbone(self, checkpoint: dict, stated: Flags) -> FoundBackbone:
        """Find the backbone. Raises UserError where there is none, or a tensor cannot be placed."""
        raise NotImplementedError

    def training(self, checkpoint: dict) -> str:
        """How the weights were trained, in words, as far as the checkpoint says it: ``epoch 200``."""
        counters = ("epoch", "iteration")
        return ", ".join(f"{name} {checkpoint[name]}" for name in counters if type(checkpoint.get(name)) is int)

    def licence(self, checkpoint: dict, *, is_named: bool) -> str:
        """Terms of the weights; ``is_named``: the user said whose they are."""
        return self.LICENCE


def contents_of(checkpoint: dict) -> str:
    """What a checkpoint holds, for a message."""
    tensors = ", ".join(map(clipped, list(tensors_of(checkpoint))[:3])) or "no tensors"
    others = [clipped(key) for key, value in checkpoint.items() if not isinstance(value, Tensor | np.ndarray)][:5]
    return f"it holds {tensors}" + (f"; at the top level {', '.join(others)}" if others else "")
