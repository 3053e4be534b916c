"""Detectron2's own files as sources of a backbone: its model zoo's weights, and detectors that anybody trained."""

import torch

from revisit.checkpoint.detectors import PREFIXES, find_backbone, no_backbone, refuse_group_norm, with_family
from revisit.checkpoint.flags import IMAGENET, flags_of, flags_to_config, is_folded, stated_for
from revisit.checkpoint.reading import tensors_of
from revisit.checkpoint.source_layout import SOURCE_LAYOUT_REGISTRY, FoundBackbone, SourceLayout
from revisit.errors import UserError
from revisit.modeling.backbone.description import BackboneDescription, Flags, Tensors, families
from revisit.modeling.backbone.resnet import BASIC_DEPTHS

from detectron2.checkpoint.c2_model_loading import convert_basic_c2_names

CAFFE2_MARK = "res2_0_branch2a_w"


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
        content = tensors_of(checkpoint)
        backbone = backbone_in_detectron2(content, author_of(checkpoint))
        if backbone is None:
            raise no_backbone(content)
        tensors, description = backbone
        stated = stated_for(description, stated)
        if stated:  # a config is over Detectron2's defaults
            flags = flags_of(flags_to_config(stated), description)
        else:
            flags = zoo_flags(tensors, description, author_of(checkpoint))
        folded = description.FOLDED if is_folded(tensors) else {}
        return FoundBackbone(tensors, description, {**flags, **folded})


def author_of(checkpoint: dict) -> str:
    """What the file calls its maker, as those of Detectron2's model zoo do; "" if it says nothing."""
    return str(checkpoint.get("__author__") or "")


def backbone_in_detectron2(tensors: Tensors, author: str = "") -> tuple[Tensors, BackboneDescription] | None:
    """The backbone's tensors under its own names, and its family; None where it lies in none of Detectron2's places.

    Weights in Caffe2's names get the statistics that Detectron2 loads them with: mean 0, variance 1. ``author`` is
    what the file calls its maker: a backbone without prefix is the zoo's if that is ``torchvision``.
    """
    if CAFFE2_MARK in tensors:
        return with_family(_from_caffe2(tensors))
    prefixes = (*PREFIXES, "") if author == "torchvision" else PREFIXES
    return find_backbone(tensors, prefixes)


def _from_caffe2(tensors: Tensors) -> Tensors:
    """A backbone of Caffe2's under Detectron2's names, without the heads of a detector."""
    refuse_group_norm(any("_gn_" in key for key in tensors))
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
            "Revisit run, or --config-file with their config.yaml"
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


def _folded(tensors: Tensors) -> Tensors:
    """With the statistics that batch norm has when it is a scale and a bias."""
    for name in [key.removesuffix(".weight") for key in tensors if key.endswith(".norm.weight")]:
        scale = tensors[f"{name}.weight"]
        tensors.setdefault(f"{name}.running_mean", torch.zeros_like(scale))
        tensors.setdefault(f"{name}.running_var", torch.ones_like(scale))
    return tensors
