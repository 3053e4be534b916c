"""Backbones on their way out: under torchvision's names, which are timm's too."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from revisit.checkpoint.convert import IMAGENET, check_backbone, convert, flags_to_config
from revisit.checkpoint.flags import FLAG_KEYS, Flags, flags_of, flags_path, read_flags, read_source
from revisit.checkpoint.layouts import Tensors, tensors_of
from revisit.checkpoint.reading import read_checkpoint
from revisit.checkpoint.safetensors_file import save_safetensors
from revisit.checkpoint.torchvision_names import torchvision_name
from revisit.errors import UserError
from revisit.files import written_whole
from revisit.modeling.backbone.resnet import BASIC_DEPTHS

SUFFIXES = (".pth", ".safetensors")


class Backbone(NamedTuple):
    """A backbone under Detectron2's names, its flags, and its origin in words, such as ``revisit: model_final.pth``."""

    tensors: Tensors
    flags: Flags
    origin: str

    @property
    def has_imagenet_statistics(self) -> bool:
        """Whether the pixel statistics are those that weights without flags are taken to be under."""
        return all(self.flags[key] == value for key, value in IMAGENET.items())


def load_backbone(path: Path) -> Backbone:
    """Read what tools/convert_to_d2.py wrote, or anything that it could convert.

    Raises:
        UserError: no backbone in the file, or no flags beside it.
    """
    content = read_checkpoint(path)
    tensors = tensors_of(content)
    if "stem.conv1.weight" in tensors:
        flags, origin = _whole(read_flags(path), path), read_source(path)
        check_backbone(tensors, flags)
    else:
        converted = convert(content)
        tensors, flags, origin = converted.tensors, _whole(converted.flags, path), converted.origin(path.name)
    return Backbone(tensors, flags_of(flags_to_config(flags)), origin)


def _whole(flags: object, path: Path) -> Flags:
    if flags is None:
        raise UserError(
            f"{path} has no {flags_path(path).name} beside it, which says under which pixel statistics and strides it "
            "is valid: put it there, or export from the checkpoint that it was converted from"
        )
    lacking = [key for key in FLAG_KEYS if not isinstance(flags, dict) or key not in flags]
    if lacking:
        raise UserError(f"the flags of {path} lack {lacking[0]}: convert the weights by tools/convert_to_d2.py again")
    for key in ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD"):
        value = flags[key]
        if not isinstance(value, list) or [type(n) in (int, float) for n in value] != [True] * 3:
            raise UserError(f"the flags of {path} have {value} as {key}: expected a list of three numbers")
    return flags


def to_torchvision(backbone: Backbone) -> Tensors:
    """The tensors under torchvision's names, ``layer1.0.conv1.weight``; their values are untouched.

    Raises:
        UserError: torchvision's ResNet of that depth cannot hold them, or would compute something else with them.
    """
    flags = backbone.flags
    depth = flags["MODEL.RESNETS.DEPTH"]
    expected = {
        "MODEL.RESNETS.STEM_TYPE": "basic",
        "MODEL.RESNETS.STEM_OUT_CHANNELS": 64,
        "MODEL.RESNETS.RES2_OUT_CHANNELS": 64 if depth in BASIC_DEPTHS else 256,
        "INPUT.FORMAT": "RGB",
    }
    if depth not in BASIC_DEPTHS:  # their blocks have no 1x1
        expected["MODEL.RESNETS.STRIDE_IN_1X1"] = False
    for key, value in expected.items():
        if flags[key] != value:
            raise UserError(
                f"{key} is {flags[key]} in the backbone and {value} in torchvision's and timm's ResNet-{depth}, which "
                "cannot hold it: use it in Detectron2"
            )
    return {torchvision_name(key): value for key, value in backbone.tensors.items()}


def write_bare(tensors: Tensors, path: Path) -> None:
    """Write tensors by name and nothing else, as .safetensors or .pth by the suffix, whole or not at all."""
    own = {key: value.clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}
    with written_whole(path) as temporary:
        if path.suffix == ".safetensors":
            save_safetensors(own, temporary)
        else:
            torch.save(own, temporary)
