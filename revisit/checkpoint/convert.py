"""Backbone weights of any source under Revisit's names, complete and with the flags that they are valid under."""

from typing import NamedTuple

import torch

from revisit.checkpoint.detectron2_layouts import zoo_flags
from revisit.checkpoint.flags import IMAGENET, flag_keys, flags_of, is_folded
from revisit.checkpoint.foreign_layouts import author_of, backbone_of, is_of_detectron2, recognise, training_of
from revisit.checkpoint.reading import require_finite
from revisit.config import add_revisit_config
from revisit.errors import UserError, expect, first_line
from revisit.modeling.backbone.description import BackboneDescription, Flags, Tensors

from detectron2.config import CfgNode, get_cfg

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COUNTER = "num_batches_tracked"  # of a BN layer; files older than it have none


class BackboneWeights(NamedTuple):
    """A backbone under its own names without prefix, such as ``res2.0.conv1.weight``."""

    tensors: Tensors
    flags: Flags
    description: BackboneDescription
    origin: str  # in words: ``revisit: model_final.pth, kNN-MoCo, 1188 iterations``; "" if nothing says it

    @property
    def source(self) -> str:
        """The layout that they were found in, one of ``SOURCES``."""
        return self.origin.partition(":")[0]

    @property
    def title(self) -> str:
        """Which network it is, such as ``ResNet-50``."""
        return self.description.title(self.flags)


def convert(
    checkpoint: dict, source: str = "auto", name: str = "checkpoint", config: dict | None = None
) -> BackboneWeights:
    """Take the backbone out of a loaded checkpoint.

    Args:
        checkpoint: what ``read_checkpoint`` returned.
        source: one of ``SOURCES``, or ``auto`` to recognise it.
        name: of its file, for the origin.
        config: keys of the config that it was trained under, by full key, if it is a model of Detectron2's; further
            keys, such as a project's own, are ignored.

    Raises:
        UserError: no backbone in it, a key that cannot be placed, or a backbone tensor without a value.
    """
    if source == "auto":
        source = recognise(checkpoint)
    tensors, description = backbone_of(checkpoint, source)
    expect(not config or source == "detectron2", f"--config: not for a checkpoint of {source}, whose flags are known")
    if config:
        stated = {key: value for key, value in config.items() if key in flag_keys(description)}
        flags = flags_of(flags_to_config(stated), description)  # over Detectron2's defaults
    else:
        flags = _flags(checkpoint, source, tensors, description)
    if is_of_detectron2(checkpoint, source) and is_folded(tensors):
        flags = {**flags, **description.FOLDED}
    check_backbone(tensors, flags, description)
    origin = ", ".join(filter(None, (f"{source}: {name}", training_of(checkpoint, source))))
    return BackboneWeights(tensors, flags, description, origin)


def _flags(checkpoint: dict, source: str, tensors: Tensors, description: BackboneDescription) -> Flags:
    """What the checkpoint says, else what its source's weights are known to expect."""
    if source == "revisit":
        flags = checkpoint.get("flags")
        expect(isinstance(flags, dict), "the checkpoint carries no flags: not a checkpoint of a Revisit run")
        return flags
    if source == "detectron2":
        return zoo_flags(tensors, description, author_of(checkpoint))
    return {**description.flags_of_tensors(tensors), **IMAGENET}


def as_rgb(weights: BackboneWeights) -> BackboneWeights:
    """The same network for RGB: of weights for BGR the channels of the first convolution are turned round."""
    if weights.flags["INPUT.FORMAT"] == "RGB":
        return weights
    key = weights.description.FIRST
    tensors = {**weights.tensors, key: weights.tensors[key].flip(1)}
    turned = {name: weights.flags[name][::-1] for name in ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD")}
    return weights._replace(tensors=tensors, flags={**weights.flags, **turned, "INPUT.FORMAT": "RGB"})


def flags_to_config(flags: Flags) -> CfgNode:
    """A config with the flags' values."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_list([item for pair in flags.items() for item in pair])
    return cfg


def check_backbone(tensors: Tensors, flags: Flags, description: BackboneDescription) -> None:
    """Every tensor holds numbers and has its place in the backbone that the flags describe, every place its tensor.

    Raises:
        UserError: names the tensor.
    """
    _check_values(tensors)
    try:
        cfg = flags_to_config(flags)
        with torch.device("meta"):
            model = description.build(cfg)
    except UserError:  # a package that the family needs is not installed
        raise
    except Exception as error:  # flags come from a file, and its author may have written anything
        reason = first_line(error)
        raise UserError(f"the checkpoint's flags describe no {description.NAME} ({reason}): {flags}") from error
    network = f"a {description.title(flags_of(cfg, description))}"
    expected = {key: value.shape for key, value in model.state_dict().items()}
    for key in tensors.keys() - expected.keys():
        raise UserError(f"cannot place {key}: {network} has no such tensor")
    for key, shape in expected.items():
        if key in tensors:
            found = tensors[key].shape
            expect(found == shape, f"{key} is {tuple(found)}, expected {tuple(shape)}")
        elif not key.endswith(_COUNTER):
            raise UserError(f"no value for {key} of {network} in the checkpoint")


def _check_values(tensors: Tensors) -> None:
    for key, value in tensors.items():
        is_plain = value.layout == torch.strided and not value.is_quantized and not value.is_meta
        if not is_plain or not (value.dtype in _FLOATS or (value.dtype == torch.int64 and key.endswith(_COUNTER))):
            raise UserError(f"{key} is a {value.dtype} tensor of layout {value.layout}: expected plain numbers")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise UserError(f"{key} claims {tuple(value.shape)} numbers and has fewer: expected each of them")
        require_finite(key, value)
