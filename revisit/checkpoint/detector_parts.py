"""What pretraining may learn of a detector beside its backbone: the pyramid and the box head, with their flags."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping
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
# What a network has a row or a channel of for each class, in Detectron2's architectures and ours.
PREDICTORS = ("roi_heads.box_predictor.", "roi_heads.mask_head.predictor.", "head.cls_score.")


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


def without_predictors(tensors: dict, weights: str) -> dict:
    """The tensors of a network of other classes but for what predicts these."""
    kept = {key: value for key, value in tensors.items() if not key.startswith(PREDICTORS)}
    if len(kept) < len(tensors):
        logger.info(f"{weights} knows other classes than this data: its predictors of classes begin anew")
    return kept


def report_parts(model: Collection[str], missing: Collection[str], weights: str) -> None:
    """Log how many tensors of every part of a detector came from ``weights``, where more than a backbone came.

    Args:
        model: names of all its tensors; ``missing``: of those that keep what they were drawn as.
    """
    part_of = {key: ".".join(key.split(".")[: 2 if key.startswith(("roi_heads.", "head.")) else 1]) for key in model}
    total = Counter(part_of.values())
    absent = Counter(part_of[key] for key in missing if key in part_of)
    if all(absent[part] == count for part, count in total.items() if part != "backbone"):
        return
    parts = [f"{part} {count - absent[part]} of {count}" for part, count in total.items()]
    new = [part for part, count in total.items() if absent[part] == count]
    logger.info(f"tensors from {weights}: {', '.join(parts)}" + (f"; new: {', '.join(new)}" if new else ""))
