"""Checkpoints of the project's own runs as a source of backbones."""

from revisit.checkpoint.detectors import DETECTOR_MARKS, backbone_of_detector
from revisit.checkpoint.flags import is_folded
from revisit.checkpoint.reading import below_prefix, clipped, tensors_of
from revisit.checkpoint.source_layout import SOURCE_LAYOUT_REGISTRY, FoundBackbone, SourceLayout
from revisit.errors import expect
from revisit.modeling.backbone.description import Flags, description_of, undescribed

_BACKBONE = "backbone."


@SOURCE_LAYOUT_REGISTRY.register()
class RunLayout(SourceLayout):
    """A checkpoint of a run, pretrained or finetuned, which says its flags itself."""

    NAME = "revisit"
    ORDER = 0
    EXPECTED = "a run's checkpoint"

    def recognises(self, checkpoint: dict, stated: Flags) -> bool:
        return "flags" in checkpoint and any(key.startswith(_BACKBONE) for key in tensors_of(checkpoint))

    def find_backbone(self, checkpoint: dict, stated: Flags) -> FoundBackbone:
        flags = checkpoint.get("flags")
        expect(isinstance(flags, dict), "the checkpoint carries no flags: not a checkpoint of a Revisit run")
        tensors = tensors_of(checkpoint)
        if any(key.startswith(DETECTOR_MARKS) for key in tensors):
            backbone, description = backbone_of_detector(tensors)
            folded = description.FOLDED if is_folded(backbone) else {}
            return FoundBackbone(backbone, description, {**flags, **folded})
        backbone = below_prefix(tensors, _BACKBONE)
        description = description_of(backbone)
        if description is None:
            raise undescribed(f"a backbone with tensors such as {clipped(next(iter(backbone), 'none'))}")
        return FoundBackbone(backbone, description, flags)

    def training(self, checkpoint: dict) -> str:
        """The method, ``1188 iterations, seed 1``, and what the run started from."""
        words = [checkpoint["method"]] if isinstance(checkpoint.get("method"), str) else []
        if isinstance(checkpoint.get("iteration"), int):
            words.append(f"{checkpoint['iteration'] + 1} iterations")
        trainer = checkpoint.get("trainer")
        if isinstance(trainer, dict) and isinstance(trainer.get("seed"), int):
            words.append(f"seed {trainer['seed']}")
        if source := start_of(checkpoint).get("source"):
            words.append(f"started from {source}")
        return ", ".join(filter(None, words))

    def licence(self, checkpoint: dict, *, is_named: bool) -> str:
        """That of the weights that the run started from."""
        return start_of(checkpoint).get("licence", "")


def start_of(checkpoint: dict) -> dict[str, str]:
    """What a run's checkpoint says of the weights that the run started from: their ``source`` and ``licence``."""
    start = checkpoint.get("start")
    return {str(key): str(value) for key, value in start.items()} if isinstance(start, dict) else {}
