"""What families share whose networks are timm's, each held by a Detectron2 backbone as timm builds it."""

from collections.abc import Sequence
from types import ModuleType

from torch import nn

from revisit.errors import expect
from revisit.imports import require_package
from revisit.keys import PIXELWISE
from revisit.modeling.backbone.description import BackboneDescription, Flags

from detectron2.config import CfgNode


def timm_module(name: str) -> ModuleType:
    """``timm.models`` or another module of timm's. Raises UserError in an environment without timm."""
    message = "the package timm is not installed: run pip install timm, or choose a ResNet by MODEL.BACKBONE.NAME"
    return require_package(f"timm.{name}", message)


def freeze(network: nn.Module, stages: Sequence[Sequence[str]], freeze_at: int) -> None:
    """Let the parameters of the first ``freeze_at`` stages take no gradient; a stage is what their names begin with."""
    frozen = tuple(name for stage in stages[:freeze_at] for name in stage)
    for name, parameter in network.named_parameters():
        if name.startswith(frozen):
            parameter.requires_grad_(False)


class TimmDescription(BackboneDescription):
    """Of a family whose tensors have timm's names after its one prefix."""

    def own_name(self, key: str) -> str:
        return f"{self.PREFIXES[0]}{key}"

    def library_name(self, key: str) -> str:
        return key.removeprefix(self.PREFIXES[0])

    def library_flags(self, flags: Flags) -> Flags:
        return {"INPUT.FORMAT": "RGB"}

    def check(self, cfg: CfgNode) -> None:
        """Raise UserError for a task whose heads are for ResNets alone."""
        name, task = cfg.MODEL.BACKBONE.NAME, cfg.MODEL.META_ARCHITECTURE
        expect(
            name not in self.BUILDERS or task not in PIXELWISE,
            f"MODEL.META_ARCHITECTURE {task} with MODEL.BACKBONE.NAME {name}: expected build_revisit_resnet_backbone, "
            "whose maps its heads are made for",
        )
