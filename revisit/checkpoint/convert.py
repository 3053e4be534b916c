"""Backbone weights of any source under Revisit's names, complete and with the flags that they are valid under."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from revisit.checkpoint.detector_parts import PARTS
from revisit.checkpoint.detectron2_layouts import zoo_flags
from revisit.checkpoint.flags import IMAGENET, flag_keys, flags_of, is_folded
from revisit.checkpoint.foreign_layouts import (
    author_of,
    backbone_of,
    is_of_detectron2,
    recognise,
    tensors_of,
    training_of,
    without_wrapper,
)
from revisit.checkpoint.reading import require_finite
from revisit.config import add_revisit_config
from revisit.errors import UserError, first_line
from revisit.modeling.backbone.description import BackboneDescription, Flags, Tensors
from revisit.modeling.backbone.timm import flags_of_name, name_on_hub

from detectron2.config import CfgNode, get_cfg

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COUNTER = "num_batches_tracked"  # of a BN layer; files older than it have none


class BackboneWeights(NamedTuple):
    """A backbone under its own names without prefix, such as ``res2.0.conv1.weight``."""

    tensors: Tensors
    flags: Flags
    description: BackboneDescription
    origin: str  # in words: ``revisit: model_final.pth, kNN-MoCo, 1188 iterations``; "" if nothing says it
    parts: Tensors = {}  # pyramid and box head that were learned with it, under names such as ``fpn_lateral2.bias``

    @property
    def source(self) -> str:  # the layout that they were found in, one of SOURCES
        return self.origin.partition(":")[0]

    @property
    def title(self) -> str:  # such as ResNet-50
        return self.description.title(self.flags)


def convert(
    checkpoint: dict, source: str = "auto", name: str = "checkpoint", stated: Flags | None = None
) -> BackboneWeights:
    """Take the backbone out of a loaded checkpoint.

    Args:
        checkpoint: what ``read_checkpoint`` returned.
        source: one of ``SOURCES``, or ``auto`` to recognise it.
        name: of its file, for the origin.
        stated: values by full key that the checkpoint itself does not say: of the config that a model of Detectron2's
            was trained under, or MODEL.TIMM.NAME. Further keys are ignored.

    Raises:
        UserError: no backbone in it, a key that cannot be placed, or a backbone tensor without a value.
    """
    stated = stated or {}
    if source == "auto":
        checkpoint = without_wrapper(checkpoint, stated)
        source = recognise(checkpoint, stated)
    tensors, description = backbone_of(checkpoint, source, stated)
    stated = {key: value for key, value in stated.items() if key in flag_keys(description)}
    if source == "revisit":
        flags = checkpoint["flags"]
    elif source == "detectron2":  # a config is over Detectron2's defaults
        flags = flags_of(flags_to_config(stated), description) if stated else None
        flags = flags or zoo_flags(tensors, description, author_of(checkpoint))
    else:
        flags = {**IMAGENET, **stated, **description.flags_of_tensors(tensors, stated)}
    if is_of_detectron2(checkpoint, source) and is_folded(tensors):
        flags = {**flags, **description.FOLDED}
    check_backbone(tensors, flags, description)
    learned = [part.of(tensors_of(checkpoint)) for part in PARTS if part.flag_keys[0] in flags]
    parts = {key: value for each in learned for key, value in each.items()}
    for key, value in parts.items():
        _check_value(key, value, value)
    origin = ", ".join(filter(None, (f"{source}: {name}", training_of(checkpoint, source))))
    return BackboneWeights(tensors, flags, description, origin, parts)


def stated_flags(path: Path, checkpoint: dict, name: str = "") -> Flags:
    """What ``name``, timm's of a network, says of a checkpoint; without one, that beside a file of Hugging Face's hub.

    A ResNet whose name nobody gave is Detectron2's: its tensors show which it is.
    """
    is_resnet = any(key.endswith("layer1.0.conv1.weight") for key in tensors_of(checkpoint))
    name = name or ("" if is_resnet else name_on_hub(path))
    return flags_of_name(name) if name else {}


def as_rgb(weights: BackboneWeights) -> BackboneWeights:
    """The same network for RGB: of weights for BGR the channels of the first convolution are turned round."""
    if weights.flags["INPUT.FORMAT"] == "RGB":
        return weights
    first = next(key for key, value in weights.tensors.items() if value.dim() == 4 and value.shape[1] == 3)
    tensors = {**weights.tensors, first: weights.tensors[first].flip(1)}
    turned = {name: weights.flags[name][::-1] for name in ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD")}
    return weights._replace(tensors=tensors, flags={**weights.flags, **turned, "INPUT.FORMAT": "RGB"})


def flags_to_config(flags: Flags) -> CfgNode:
    """A config with the flags' values."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_list([item for pair in flags.items() for item in pair])
    return cfg


def check_backbone(tensors: Tensors, flags: Flags, description: BackboneDescription) -> None:
    """Raise UserError unless every tensor holds numbers and has its place in the backbone that the flags describe, and
    every place its tensor."""
    try:
        cfg = flags_to_config(flags)
        with torch.device("meta"):
            model = description.build(cfg)
    except Exception as error:  # flags come from a file, and its author may have written anything
        reason = first_line(error)
        raise UserError(f"the checkpoint's flags describe no {description.NAME} ({reason}): {flags}") from error
    network = f"a {description.title(flags_of(cfg, description))}"
    expected = model.state_dict()
    for key, value in tensors.items():
        if key not in expected:
            raise UserError(f"cannot place {key}: {network} has no such tensor")
        _check_value(key, value, expected[key])
    for key in expected:
        if key not in tensors and not key.endswith(_COUNTER):
            raise UserError(f"no value for {key} of {network} in the checkpoint")


def _check_value(key: str, value: Tensor, expected: Tensor) -> None:
    is_plain = value.layout == torch.strided and not value.is_quantized and not value.is_meta
    dtypes = _FLOATS if expected.is_floating_point() else (expected.dtype,)
    if not is_plain or value.dtype not in dtypes:
        raise UserError(f"{key} is a {value.dtype} tensor of layout {value.layout}: expected plain numbers")
    if value.shape != expected.shape:
        raise UserError(f"{key} is {tuple(value.shape)}, expected {tuple(expected.shape)}")
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise UserError(f"{key} claims {tuple(value.shape)} numbers and has fewer: expected each of them")
    require_finite(key, value)
