"""What weights may have in addition to the backbone: a detector's pyramid and box head, and predictors of classes."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from revisit.checkpoint.reading import below_prefix, shapes_of
from revisit.errors import expect
from revisit.keys import value_of
from revisit.modeling.backbone.description import Flags, description_of

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)


class Part(NamedTuple):
    title: str
    prefix: str  # of its names in a detector
    names: tuple[str, ...]  # how its own names begin
    flag_keys: tuple[str, ...]  # config keys that its weights are valid under; the first is in the flags of what has it

    def of(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The part's tensors by their own names, from a converted file or from a whole model."""
        named = {key.removeprefix(self.prefix): value for key, value in tensors.items()}
        return {key: value for key, value in named.items() if key.startswith(self.names) and "num_batches" not in key}


_BOX_HEAD = ("MODEL.ROI_BOX_HEAD.NAME", "MODEL.ROI_BOX_HEAD.POOLER_TYPE", "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION")
PYRAMID = Part("pyramid", "backbone.", ("fpn_", "scales."), ("MODEL.FPN.OUT_CHANNELS", "MODEL.FPN.FUSE_TYPE"))
PARTS = (PYRAMID, Part("box head", "roi_heads.", ("box_head.",), _BOX_HEAD))
# What a network has a row or a channel of for each class, in Detectron2's architectures and ours.
PREDICTORS = (
    "roi_heads.box_predictor.",
    "roi_heads.mask_head.predictor.",
    "head.cls_score.",
    "sem_seg_head.predictor.",
)
PIXEL_LAYERS = "sem_seg_head.layers."  # of our heads for segmentation, whose last layer is the predictor
BOX_SIDES = 4  # rows of a class in what predicts its box


def part_flags(tensors: Mapping[str, object], cfg: CfgNode) -> Flags:
    """The flags of the parts that are among the tensors of a model of ``cfg``."""
    flags = {}
    for part in PARTS:
        if part.of(tensors):
            flags |= {key: value_of(cfg, key) for key in part.flag_keys}
    return flags


def parts_that_fit(tensors: dict, flags: Flags, model: dict, cfg: CfgNode, weights: str) -> dict:
    """The tensors of ``weights``, without the parts that the detector ``model`` does not have, or has in another form.

    Raises:
        UserError: the detector has another pyramid. Another box head starts from random weights.
    """
    for part in PARTS:
        theirs = part.of(tensors)
        is_stated = part.flag_keys[0] in flags
        if not theirs or not is_stated:
            continue
        ours = part.of(model)
        own_flags = {key: value_of(cfg, key) for key in part.flag_keys}
        wrong = _differences(own_flags | shapes_of(ours), flags | shapes_of(theirs))
        if ours and not wrong:
            logger.info(f"{len(ours)} of {len(ours)} {part.title} tensors loaded from {weights}")
            continue
        expect(
            not ours or part is not PYRAMID, f"{weights} has another pyramid: {'; '.join(wrong[:2])}. Change the config"
        )
        logger.info(f"the {part.title} of {weights} is left out: this network has none, or another one")
        tensors = {key: value for key, value in tensors.items() if key.removeprefix(part.prefix) not in theirs}
    return tensors


def _differences(here: Mapping[str, object], there: Mapping[str, object]) -> list[str]:
    other = [key for key, value in here.items() if there.get(key) != value]
    return [f"{key} is {here[key]} here and {there.get(key)} there" for key in other]


def predictors_for(tensors: dict, classes: Sequence[str], theirs: Sequence[str], weights: str) -> dict:
    """The tensors for a network of ``classes``. What predicts classes is put in their order where they are ``theirs``,
    which the file's predictors have; else it is left out."""
    own = {key for key in tensors if key.startswith((*PREDICTORS, *_last_pixel_layer(tensors)))}
    if not own or list(classes) == list(theirs):
        return tensors
    if sorted(classes) == sorted(theirs) and len(set(classes)) == len(classes):
        logger.info(f"{weights} has these classes in another order: its predictors are put in that of this data")
        order = [list(theirs).index(name) for name in classes]
        return {key: _in_order(key, value, order) if key in own else value for key, value in tensors.items()}
    logger.info(f"{weights} knows other classes than this data: predictors of classes start from random weights")
    return {key: value for key, value in tensors.items() if key not in own}


def _last_pixel_layer(tensors: dict) -> list[str]:
    numbers = [int(key.split(".")[0]) for key in below_prefix(tensors, PIXEL_LAYERS)]
    return [f"{PIXEL_LAYERS}{max(numbers)}."] if numbers else []


def _in_order(key: str, values: Tensor, order: list[int]) -> Tensor:
    """A predictor's rows (R, ...) with class ``order[n]`` of its own as class n; those of all classes, or of none of
    them, stay."""
    if key.startswith("head."):  # of each anchor in turn all classes
        return values.unflatten(0, (-1, len(order)))[:, order].flatten(0, 1)
    rows = BOX_SIDES if ".bbox_pred." in key else 1
    count = rows * len(order)
    if len(values) < count:
        return values
    return torch.cat([values[:count].unflatten(0, (-1, rows))[order].flatten(0, 1), values[count:]])


def report_parts(model: Collection[str], missing: Collection[str], weights: str) -> None:
    """Log how many tensors of every part of a detector came from ``weights``, if more than the backbone came.

    Args:
        model: names of all its tensors.
        missing: names of those that ``weights`` does not have.
    """
    total = Counter(map(_part_of, model))
    absent = Counter(_part_of(key) for key in missing if key in model)
    new = [part for part, count in total.items() if absent[part] == count]
    if {*new, "backbone"} >= total.keys():
        return
    counts = [f"{part} {count - absent[part]} of {count}" for part, count in total.items()]
    added = f"; new: {', '.join(new)}" if new else ""
    logger.info(f"tensors from {weights}: {', '.join(counts)}{added}")


def _part_of(key: str) -> str:
    """``backbone`` of a backbone's tensor, ``roi_heads.box_head`` of a head's."""
    depth = 2 if key.startswith(("roi_heads.", "head.")) else 1
    return ".".join(key.split(".")[:depth])


def for_both_encoders(tensors: dict, model: nn.Module, path: str) -> dict:
    """Of a pretraining's weights the backbone alone, under the names of encoder and momentum encoder.

    Else one method's checkpoint would start half of another: g and not g', or a queue whose rows do not match.
    """
    parts = [name for name, _ in model.named_children()]
    encoders = [name for name in parts if name.endswith("backbone")]
    heads = [name for name in parts if name.endswith("roi_heads")]  # C4's have a stage of the backbone
    backbone = of_backbone(tensors)
    description = description_of(backbone)
    if not encoders or description is None:
        return tensors
    backbone = {key: value for key, value in backbone.items() if key.startswith(description.PREFIXES)}
    if len(backbone) < len(tensors):
        left = sorted({key.partition(".")[0] for key in tensors} - {"backbone"})
        logger.info(f"of {path} the backbone starts {' and '.join(encoders)}; not taken: {', '.join(left)}")
    places = product(encoders + heads, ("", "bottom_up."), backbone)
    keys = {f"{part}.{pyramid}{name}": name for part, pyramid, name in places}
    return {key: backbone[keys[key]] for key in model.state_dict() if key in keys}


def of_backbone(tensors: dict) -> dict:
    """Of a model's tensors those of the network below its FPN, or of its backbone, without prefix; else all."""
    for prefix in ("backbone.bottom_up.", "backbone."):
        if backbone := below_prefix(tensors, prefix):
            return backbone
    return tensors
