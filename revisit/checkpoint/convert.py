"""Backbone weights of any source under Revisit's names, complete and with the flags that they are valid under."""

from typing import NamedTuple

import torch

from revisit.checkpoint.detectron2_layouts import zoo_flags
from revisit.checkpoint.flags import IMAGENET, flags_of
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
    checkpoint: dict, source: str = "auto", name: str = "checkpoint", cfg: CfgNode | None = None
) -> BackboneWeights:
    """Take the backbone out of a loaded checkpoint.

    Args:
        checkpoint: what ``read_checkpoint`` returned.
        source: one of ``SOURCES``, or ``auto`` to recognise it.
        name: of its file, for the origin.
        cfg: the config that it was trained under, if it is a model of Detectron2's.

    Raises:
        UserError: no backbone in it, a key that cannot be placed, or a backbone tensor without a value.
    """
    if source == "auto":
        source = recognise(checkpoint)
    tensors, description = backbone_of(checkpoint, source)
    expect(cfg is None or source == "detectron2", f"--config: not for a checkpoint of {source}, whose flags are known")
    flags = flags_of(cfg, description) if cfg else _flags(checkpoint, source, tensors, description)
    if is_of_detectron2(checkpoint, source) and _is_folded(tensors):
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


def _is_folded(tensors: Tensors) -> bool:
    """Whether batch norm is a scale and a bias: every layer's mean is 0 and its variance 1."""
    means = [value for key, value in tensors.items() if key.endswith(".running_mean")]
    variances = [value for key, value in tensors.items() if key.endswith(".running_var")]
    return bool(means) and not any(m.any() for m in means) and all(((v - 1).abs() < 1e-4).all() for v in variances)


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
