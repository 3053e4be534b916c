"""What pretraining may learn of a detector beside its backbone: the pyramid and the box head, with their flags."""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from revisit.keys import value_of
from revisit.modeling.backbone.description import Flags

from detectron2.config import CfgNode

Value = TypeVar("Value")


class Part(NamedTuple):
    title: str
    place: str  # in a detector, before the part's own names
    names: tuple[str, ...]  # how these begin
    flag_keys: tuple[str, ...]  # config keys that its weights are valid under; what has these flags has the part
    may_differ: bool  # whether a detector may have another one, which then starts anew

    def of(self, tensors: Mapping[str, Value]) -> dict[str, Value]:
        """The part's tensors by their own names, which a converted file has, or a whole model below ``place``."""
        named = {key.removeprefix(self.place): value for key, value in tensors.items()}
        counter = "num_batches_tracked"  # which older files lack
        return {key: value for key, value in named.items() if key.startswith(self.names) and not key.endswith(counter)}

    def is_in(self, flags: Flags) -> bool:
        """Whether weights with such flags have learned the part."""
        return self.flag_keys[0] in flags


_HEAD = "MODEL.ROI_BOX_HEAD."
PYRAMID = Part(
    "pyramid", "backbone.", ("fpn_", "scales."), ("MODEL.FPN.OUT_CHANNELS", "MODEL.FPN.FUSE_TYPE"), may_differ=False
)
BOX_HEAD = Part(
    "box head",
    "roi_heads.",
    ("box_head.",),
    tuple(f"{_HEAD}{key}" for key in ("NAME", "POOLER_TYPE", "POOLER_RESOLUTION")),
    may_differ=True,
)
PARTS = (PYRAMID, BOX_HEAD)


def part_flags(tensors: Mapping[str, object], cfg: CfgNode) -> Flags:
    """The flags of the parts that are among the tensors of a model of ``cfg``."""
    return {key: value_of(cfg, key) for part in PARTS if part.of(tensors) for key in part.flag_keys}


def same_parts(tensors: dict, flags: Flags, model: dict, cfg: CfgNode) -> tuple[list[Part], list[Part]]:
    """Of the parts in a file's tensors those that a detector's ``model`` has too, and those that it does not.

    A part that ``may_differ`` is the same where all of its shapes and flags are.
    """
    there = [part for part in PARTS if part.is_in(flags) and part.of(tensors)]
    same = []
    for part in there:
        ours, theirs = part.of(model), part.of(tensors)
        equal = all(value_of(cfg, key) == flags[key] for key in part.flag_keys) and all(
            name in theirs and theirs[name].shape == value.shape for name, value in ours.items()
        )
        if ours and (equal or not part.may_differ):
            same.append(part)
    return same, [part for part in there if part not in same]
