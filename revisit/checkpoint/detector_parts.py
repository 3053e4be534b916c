"""What pretraining may learn of a detector beside its backbone: the pyramid and the box head, with their flags."""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from revisit.errors import expect
from revisit.keys import value_of
from revisit.modeling.backbone.description import Flags

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)


class Part(NamedTuple):
    title: str
    place: str  # in a detector, before the part's own names
    names: tuple[str, ...]  # how these begin
    flag_keys: tuple[str, ...]  # config keys that its weights are valid under; what has these flags has the part

    def of(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The part's tensors by their own names, which a converted file has, or a whole model after ``place``."""
        named = {key.removeprefix(self.place): value for key, value in tensors.items()}
        return {key: each for key, each in named.items() if key.startswith(self.names) and "num_batches" not in key}


_BOX_HEAD = tuple(f"MODEL.ROI_BOX_HEAD.{key}" for key in ("NAME", "POOLER_TYPE", "POOLER_RESOLUTION"))
PYRAMID = Part("pyramid", "backbone.", ("fpn_", "scales."), ("MODEL.FPN.OUT_CHANNELS", "MODEL.FPN.FUSE_TYPE"))
PARTS = (PYRAMID, Part("box head", "roi_heads.", ("box_head.",), _BOX_HEAD))


def part_flags(tensors: Mapping[str, object], cfg: CfgNode) -> Flags:
    """The flags of the parts that are among the tensors of a model of ``cfg``."""
    return {key: value_of(cfg, key) for part in PARTS if part.of(tensors) for key in part.flag_keys}


def parts_that_fit(tensors: dict, flags: Flags, model: dict, cfg: CfgNode, weights: str) -> dict:
    """The tensors of ``weights`` without the parts that a detector's ``model`` has otherwise, or not at all.

    Raises:
        UserError: it has another pyramid; another box head begins anew.
    """
    for part in PARTS:
        ours, theirs = part.of(model), part.of(tensors)
        if not theirs or part.flag_keys[0] not in flags:
            continue
        here = {key: value_of(cfg, key) for key in part.flag_keys} | {key: tuple(x.shape) for key, x in ours.items()}
        there = flags | {key: tuple(x.shape) for key, x in theirs.items()}
        wrong = [f"{key} is {here[key]} here and {there.get(key)} there" for key in here if here[key] != there.get(key)]
        another = f"{weights} has another pyramid: {'; '.join(wrong[:2])}. Change the config"
        expect(not (ours and wrong and part is PYRAMID), another)
        if ours and not wrong:
            logger.info(f"{len(ours)} of {len(ours)} {part.title} tensors loaded from {weights}")
        else:
            logger.info(f"the {part.title} of {weights} is left out: this network has none, or another one")
            tensors = {key: each for key, each in tensors.items() if key.removeprefix(part.place) not in theirs}
    return tensors
