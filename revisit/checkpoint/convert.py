"""Backbone weights of other layouts, under Detectron2's names (PROTOCOLS: checkpoints of other projects)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from revisit.checkpoint.flags import Flags
from revisit.checkpoint.reading import require_tensors
from revisit.config import add_revisit_config
from revisit.errors import UserError, first_line
from revisit.modeling.backbone import BLOCKS_PER_STAGE, build_revisit_resnet_backbone

from detectron2.config import CfgNode, get_cfg
from detectron2.layers import ShapeSpec

Tensors = dict[str, Tensor]

IMAGENET_MEAN = [123.675, 116.28, 103.53]  # RGB, 0..255
IMAGENET_STD = [58.395, 57.12, 57.375]

_NOT_BACKBONE = ("projection_head.", "momentum_backbone.", "momentum_projection_head.", "queue.")

# torchvision's module names -> Detectron2's
_TORCHVISION_NAMES = (
    (r"^conv1\.", r"stem.conv1."),
    (r"^bn1\.", r"stem.conv1.norm."),
    (r"^layer(\d)\.(\d+)\.conv(\d)\.", lambda m: f"res{int(m[1]) + 1}.{m[2]}.conv{m[3]}."),
    (r"^layer(\d)\.(\d+)\.bn(\d)\.", lambda m: f"res{int(m[1]) + 1}.{m[2]}.conv{m[3]}.norm."),
    (r"^layer(\d)\.(\d+)\.downsample\.0\.", lambda m: f"res{int(m[1]) + 1}.{m[2]}.shortcut."),
    (r"^layer(\d)\.(\d+)\.downsample\.1\.", lambda m: f"res{int(m[1]) + 1}.{m[2]}.shortcut.norm."),
)


class Converted(NamedTuple):
    """A backbone under Detectron2's names without prefix, such as ``res2.0.conv1.weight``."""

    tensors: Tensors
    flags: Flags
    source: str


def convert(checkpoint: dict, source: str = "auto") -> Converted:
    """Take the backbone out of a loaded checkpoint.

    Args:
        checkpoint: what ``torch.load`` returned.
        source: one of ``SOURCES``, or ``auto`` to recognise it.

    Raises:
        UserError: no backbone in it, a key that cannot be placed, or a backbone tensor without a value.
    """
    if source == "auto":
        source = recognise(checkpoint)
    tensors, flags = SOURCES[source](checkpoint)
    _check_values(tensors)
    _check_complete(tensors, flags)
    return Converted(tensors, flags, source)


def recognise(checkpoint: dict) -> str:
    """The source that a checkpoint comes from, by its layout."""
    keys = _state_dict(checkpoint).keys()
    if "flags" in checkpoint and any(key.startswith("backbone.") for key in keys):
        return "revisit"
    if "conv1.weight" in keys and any(key.startswith("layer1.0.") for key in keys):
        return "torchvision"
    some = ", ".join(list(map(str, keys))[:3]) or "no tensors"
    raise UserError(f"no backbone recognised in the checkpoint (it holds {some}); known layouts: {', '.join(SOURCES)}")


def _state_dict(checkpoint: dict) -> Tensors:
    """The tensors by name, bare or under the usual top-level names."""
    for name in ("model", "state_dict"):
        if isinstance(checkpoint.get(name), dict):
            require_tensors(checkpoint[name], name)
            return checkpoint[name]
    return {str(key): value for key, value in checkpoint.items() if isinstance(value, Tensor)}


def _from_revisit(checkpoint: dict) -> tuple[Tensors, Flags]:
    tensors = {}
    for key, value in _state_dict(checkpoint).items():
        if key.startswith("backbone."):
            tensors[key.removeprefix("backbone.")] = value
        elif not key.startswith(_NOT_BACKBONE):
            raise UserError(f"cannot place {key}: not a checkpoint of a Revisit pretraining run")
    if not isinstance(checkpoint.get("flags"), dict):
        raise UserError("the checkpoint carries no flags: not a checkpoint of a Revisit pretraining run")
    return tensors, checkpoint["flags"]


def _from_torchvision(checkpoint: dict) -> tuple[Tensors, Flags]:
    tensors = {}
    for key, value in _state_dict(checkpoint).items():
        if not key.startswith("fc."):
            tensors[_detectron2_name(key)] = value
    return tensors, {
        **_resnet_flags(tensors),
        "MODEL.PIXEL_MEAN": IMAGENET_MEAN,
        "MODEL.PIXEL_STD": IMAGENET_STD,
        "INPUT.FORMAT": "RGB",
    }


def _detectron2_name(key: str) -> str:
    for pattern, replacement in _TORCHVISION_NAMES:
        name, count = re.subn(pattern, replacement, key)
        if count:
            return name
    raise UserError(f"cannot place {key}: not a tensor of a torchvision ResNet")


def _resnet_flags(tensors: Tensors) -> Flags:
    """Depth and widths of a torchvision-style ResNet, read off its tensors; their stride lies in the 3x3."""
    bottleneck = "res2.0.conv3.weight" in tensors
    blocks = tuple(
        len({key.split(".")[1] for key in tensors if key.startswith(f"res{stage}.")}) for stage in range(2, 6)
    )
    depth = next((d for d, counts in BLOCKS_PER_STAGE.items() if counts == blocks and (d >= 50) == bottleneck), None)
    if depth is None:
        raise UserError(f"no ResNet has {blocks} blocks a stage: expected one of depth {list(BLOCKS_PER_STAGE)}")
    stem, first = tensors.get("stem.conv1.weight"), tensors.get("res2.0.conv1.weight")
    last = tensors.get("res2.0.conv3.weight" if bottleneck else "res2.0.conv2.weight")
    middle = tensors.get("res2.0.conv2.weight")
    for name, tensor in {
        "stem.conv1.weight": stem,
        "res2.0.conv1.weight": first,
        "res2.0.conv2.weight": middle,
    }.items():
        if tensor is None or tensor.dim() != 4:
            raise UserError(f"the checkpoint has no convolution {name}")
    groups = first.shape[0] // middle.shape[1] if bottleneck else 1
    return {
        "MODEL.RESNETS.DEPTH": depth,
        "MODEL.RESNETS.STEM_TYPE": "cifar" if stem.shape[-1] == 3 else "basic",
        "MODEL.RESNETS.STEM_OUT_CHANNELS": stem.shape[0],
        "MODEL.RESNETS.RES2_OUT_CHANNELS": last.shape[0],
        "MODEL.RESNETS.NUM_GROUPS": groups,
        "MODEL.RESNETS.WIDTH_PER_GROUP": first.shape[0] // groups if bottleneck else 64,
        "MODEL.RESNETS.STRIDE_IN_1X1": False,
    }


SOURCES: dict[str, Callable[[dict], tuple[Tensors, Flags]]] = {
    "revisit": _from_revisit,
    "torchvision": _from_torchvision,
}


def flags_to_config(flags: Flags) -> CfgNode:
    """A config that builds the backbone which the flags describe."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_list([item for pair in flags.items() for item in pair])
    cfg.MODEL.RESNETS.OUT_FEATURES = ["res5"]
    cfg.MODEL.RESNETS.NORM = "BN"
    cfg.MODEL.BACKBONE.FREEZE_AT = 0
    return cfg


def _check_values(tensors: Tensors) -> None:
    for key, value in tensors.items():
        if value.layout != torch.strided or value.is_quantized or value.is_complex() or value.is_meta:
            raise UserError(f"{key} is a {value.dtype} tensor of layout {value.layout}: expected plain numbers")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise UserError(f"{key} claims {tuple(value.shape)} numbers and has fewer: expected each of them")
        if not value.isfinite().all():
            raise UserError(f"{key} has values that are not finite: the weights of a run that diverged")


def _check_complete(tensors: Tensors, flags: Flags) -> None:
    """Every tensor has its place and every place its tensor, in the ResNet that the flags describe."""
    if not tensors:
        raise UserError("no backbone in the checkpoint")
    try:
        with torch.device("meta"):
            model = build_revisit_resnet_backbone(flags_to_config(flags), ShapeSpec(channels=3))
    except Exception as error:  # flags come from a file, and its author may have written anything
        raise UserError(f"the checkpoint's flags describe no ResNet ({first_line(error)}): {flags}") from error
    expected = {key: value.shape for key, value in model.state_dict().items()}
    for key in tensors.keys() - expected.keys():
        raise UserError(f"cannot place {key}: a ResNet-{flags['MODEL.RESNETS.DEPTH']} has no such tensor")
    for key, shape in expected.items():
        if key not in tensors and key.endswith("num_batches_tracked"):  # older files have none
            continue
        if key not in tensors:
            raise UserError(f"no value for {key} of a ResNet-{flags['MODEL.RESNETS.DEPTH']} in the checkpoint")
        if tensors[key].shape != shape:
            raise UserError(f"{key} is {tuple(tensors[key].shape)}, expected {tuple(shape)}")
