"""Where the backbone lies in Detectron2's own files: its model zoo's weights, and detectors that anybody trained."""

import re

import torch

from revisit.checkpoint.flags import IMAGENET, flag_keys, flags_of, flags_to_config, is_folded
from revisit.checkpoint.reading import clipped, tensors_of
from revisit.checkpoint.source_layout import SOURCE_LAYOUT_REGISTRY, FoundBackbone, SourceLayout
from revisit.errors import UserError
from revisit.modeling.backbone.description import (
    BackboneDescription,
    Flags,
    Tensors,
    description_of,
    families,
    undescribed,
)
from revisit.modeling.backbone.resnet import BASIC_DEPTHS

from detectron2.checkpoint.c2_model_loading import convert_basic_c2_names

CAFFE2_MARK = "res2_0_branch2a_w"
DETECTOR_MARKS = ("backbone.bottom_up.", "proposal_generator.", "roi_heads.", "head.", "sem_seg_head.")

_PREFIXES = ("backbone.bottom_up.", "backbone.")  # in a detector with FPN; with C4 or DC5
_HEADS = "roi_heads."
_RES5_OF_C4 = f"{_HEADS}res5."
# MSRA's files have a bias next to the first normalisation. Detectron2 leaves it out too.
_LEFT = re.compile(r"(stem\.)?fc(1000)?\.|linear\.|stem\.conv1\.bias$|norm\.(weight|bias)$|.*[._]momentum$")


@SOURCE_LAYOUT_REGISTRY.register()
class Detectron2Layout(SourceLayout):
    """A backbone or a detector of Detectron2, from its model zoo or of anybody's training."""

    NAME = "detectron2"
    EXPECTED = "a model of Detectron2's"
    ORDER = 3  # others have a backbone. too, and names of their own after it
    LICENCE = "CC BY-SA 3.0, if they are of Detectron2's model zoo"

    def recognises(self, checkpoint: dict, stated: Flags) -> bool:
        return backbone_in_detectron2(tensors_of(checkpoint), author_of(checkpoint)) is not None

    def find_backbone(self, checkpoint: dict, stated: Flags) -> FoundBackbone:
        """Find it; the flags are those of ``stated``, a config's keys, or else what the zoo's configs say."""
        tensors, description = backbone_of_detector(checkpoint)
        stated = {key: value for key, value in stated.items() if key in flag_keys(description)}
        if stated:  # a config is over Detectron2's defaults
            flags = flags_of(flags_to_config(stated), description)
        else:
            flags = zoo_flags(tensors, description, author_of(checkpoint))
        folded = description.FOLDED if is_folded(tensors) else {}
        return FoundBackbone(tensors, description, {**flags, **folded})


def author_of(checkpoint: dict) -> str:
    """What the file calls its maker, as those of Detectron2's model zoo do; "" if it says nothing."""
    return str(checkpoint.get("__author__") or "")


def backbone_of_detector(checkpoint: dict) -> tuple[Tensors, BackboneDescription]:
    """``backbone_in_detectron2``; UserError where there is none."""
    tensors = tensors_of(checkpoint)
    if backbone := backbone_in_detectron2(tensors, author_of(checkpoint)):
        return backbone
    raise undescribed(f"the backbone of a model with tensors such as {clipped(next(iter(tensors), 'none'))}")


def backbone_in_detectron2(tensors: Tensors, author: str = "") -> tuple[Tensors, BackboneDescription] | None:
    """The backbone's tensors under its own names, and its family; None where it lies in none of Detectron2's places.

    Weights in Caffe2's names get the statistics that Detectron2 loads them with: mean 0, variance 1. ``author`` is
    what the file calls its maker: a backbone without prefix is the zoo's if that is ``torchvision``.
    """
    if CAFFE2_MARK in tensors:
        return _with_family(_from_caffe2(tensors))
    prefixes = (*_PREFIXES, "") if author == "torchvision" else _PREFIXES
    candidates = (_backbone_after(prefix, tensors) for prefix in prefixes)
    return next(filter(None, candidates), None)


def _backbone_after(prefix: str, tensors: Tensors) -> tuple[Tensors, BackboneDescription] | None:
    below = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    identified = _with_family(below)
    if identified is None:
        return None
    backbone, description = identified
    if description.FOLDED:
        has_scales = any(key.endswith("norm.weight") for key in backbone)
        has_statistics = any(key.endswith("norm.running_mean") for key in backbone)
        _refuse_group_norm(has_scales and not has_statistics)
    if prefix:
        below |= {key.removeprefix(_HEADS): value for key, value in tensors.items() if key.startswith(_RES5_OF_C4)}
    return _with_family(below)


def _from_caffe2(tensors: Tensors) -> Tensors:
    """A backbone of Caffe2's under Detectron2's names, without the heads of a detector."""
    _refuse_group_norm(any("_gn_" in key for key in tensors))
    names = convert_basic_c2_names(list(tensors))
    prefixes = tuple(prefix for family in families() for prefix in family.PREFIXES)
    named = zip(names, tensors.values(), strict=True)
    return _folded({name: value for name, value in named if name.startswith(prefixes)})


def zoo_flags(tensors: Tensors, description: BackboneDescription, author: str) -> Flags:
    """What the zoo's configs state for such weights: nothing in a file says it.

    MSRA's ResNets have strides in the 1x1 and pixels that nothing divides; ResNeXts have neither, and torchvision's
    weights are as torchvision trained them. Raises UserError for batch norm that is not folded.
    """
    if author != "torchvision" and not is_folded(tensors):
        raise UserError(
            "tensors without flags, whose batch norm has statistics, unlike most of Detectron2's model zoo: nothing "
            "says which channel order, pixel statistics and strides they were trained with. Expected a checkpoint of a "
            "Revisit run, or --config with their config.yaml"
        )
    flags = {**IMAGENET, **description.flags_of_tensors(tensors, {})}
    if author == "torchvision":
        return flags
    flags["INPUT.FORMAT"] = "BGR"
    for key in ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD"):
        flags[key] = flags[key][::-1]
    if flags["MODEL.RESNETS.NUM_GROUPS"] == 1:
        flags["MODEL.RESNETS.STRIDE_IN_1X1"] = flags["MODEL.RESNETS.DEPTH"] not in BASIC_DEPTHS
        flags["MODEL.PIXEL_STD"] = [1.0, 1.0, 1.0]
    return flags


def _refuse_group_norm(is_there: bool) -> None:
    if is_there:
        raise UserError("the backbone has group norm, or batch norm without statistics: expected batch norm with them")


def _with_family(tensors: Tensors) -> tuple[Tensors, BackboneDescription] | None:
    kept = {key: value for key, value in tensors.items() if not _LEFT.match(key) and not key.startswith("res5.norm.")}
    description = description_of(kept)
    return (kept, description) if description else None


def _folded(tensors: Tensors) -> Tensors:
    """With the statistics that batch norm has when it is a scale and a bias."""
    for name in [key.removesuffix(".weight") for key in tensors if key.endswith(".norm.weight")]:
        scale = tensors[f"{name}.weight"]
        tensors.setdefault(f"{name}.running_mean", torch.zeros_like(scale))
        tensors.setdefault(f"{name}.running_var", torch.ones_like(scale))
    return tensors
