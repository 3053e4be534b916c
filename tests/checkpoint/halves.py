"""Weights of a project outside of the tree, which keeps each tensor of a ResNet as two halves."""

import torch

from revisit.checkpoint.flags import IMAGENET
from revisit.checkpoint.reading import tensors_of
from revisit.checkpoint.source_layout import SOURCE_LAYOUT_REGISTRY, FoundBackbone, SourceLayout
from revisit.modeling.backbone.description import Flags, description_of


@SOURCE_LAYOUT_REGISTRY.register()
class Halves(SourceLayout):
    """``net.a.NAME`` and ``net.b.NAME`` are to be added, under Detectron2's names of a ResNet."""

    NAME = "halves"
    LICENCE = "MIT"
    EXPECTED = "the tensors net.a. and net.b. of halves"

    def recognises(self, checkpoint: dict, stated: Flags) -> bool:
        return any(key.startswith("net.a.") for key in tensors_of(checkpoint))

    def find_backbone(self, checkpoint: dict, stated: Flags) -> FoundBackbone:
        tensors = tensors_of(checkpoint)
        names = [key.removeprefix("net.a.") for key in tensors if key.startswith("net.a.")]
        backbone = {name: torch.add(tensors[f"net.a.{name}"], tensors[f"net.b.{name}"]) for name in names}
        description = description_of(backbone)
        flags = {**IMAGENET, **description.flags_of_tensors(backbone, {})}
        return FoundBackbone(backbone, description, flags, ("the halves are added",))
