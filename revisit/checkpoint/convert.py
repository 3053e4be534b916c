"""Backbone weights of any source under Detectron2's names, complete and with the flags that they are valid under."""

from __future__ import annotations

from typing import NamedTuple

import torch

from revisit.checkpoint.flags import Flags
from revisit.checkpoint.layouts import Tensors, backbone_of, flags_of_run, recognise, training_of
from revisit.config import add_revisit_config
from revisit.errors import UserError, first_line
from revisit.modeling.backbone.resnet import BLOCKS_PER_STAGE, build_revisit_resnet_backbone

from detectron2.config import CfgNode, get_cfg
from detectron2.layers import ShapeSpec

# Of MoCo, the reference code, DenseCL, SwAV, VirTex, torchvision, and timm's resnet50.
IMAGENET = {
    "MODEL.PIXEL_MEAN": [123.675, 116.28, 103.53],  # 0..255
    "MODEL.PIXEL_STD": [58.395, 57.12, 57.375],
    "INPUT.FORMAT": "RGB",
}
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COUNTER = "num_batches_tracked"  # of a BN layer; files older than it have none


class Converted(NamedTuple):
    """A backbone under Detectron2's names without prefix, such as ``res2.0.conv1.weight``."""

    tensors: Tensors
    flags: Flags
    source: str
    training: str = ""  # in words, "" if the checkpoint tells nothing

    def origin(self, name: str) -> str:
        """Where they come from, in words, given the name of the checkpoint's file."""
        return f"{self.source}: {name}{self.training and ', '}{self.training}"


def convert(checkpoint: dict, source: str = "auto") -> Converted:
    """Take the backbone out of a loaded checkpoint.

    Args:
        checkpoint: what ``read_checkpoint`` returned.
        source: one of ``SOURCES``, or ``auto`` to recognise it.

    Raises:
        UserError: no backbone in it, a key that cannot be placed, or a backbone tensor without a value.
    """
    if source == "auto":
        source = recognise(checkpoint)
    tensors = backbone_of(checkpoint, source)
    flags = flags_of_run(checkpoint) if source == "revisit" else {**_resnet_flags(tensors), **IMAGENET}
    check_backbone(tensors, flags)
    return Converted(tensors, flags, source, training_of(checkpoint, source))


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
        if tensor is None or tensor.dim() != 4 or not all(tensor.shape):
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


def flags_to_config(flags: Flags) -> CfgNode:
    """A config that builds the backbone which the flags describe."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_list([item for pair in flags.items() for item in pair])
    cfg.MODEL.RESNETS.OUT_FEATURES = ["res5"]
    cfg.MODEL.RESNETS.NORM = "BN"
    cfg.MODEL.BACKBONE.FREEZE_AT = 0
    return cfg


def check_backbone(tensors: Tensors, flags: Flags) -> None:
    """Every tensor holds numbers and has its place in the ResNet that the flags describe, every place its tensor.

    Raises:
        UserError: names the tensor.
    """
    if not tensors:
        raise UserError("no backbone in the checkpoint")
    _check_values(tensors)
    try:
        cfg = flags_to_config(flags)
        with torch.device("meta"):
            model = build_revisit_resnet_backbone(cfg, ShapeSpec(channels=3))
    except Exception as error:  # flags come from a file, and its author may have written anything
        raise UserError(f"the checkpoint's flags describe no ResNet ({first_line(error)}): {flags}") from error
    network = f"a ResNet-{cfg.MODEL.RESNETS.DEPTH}"
    expected = {key: value.shape for key, value in model.state_dict().items()}
    for key in tensors.keys() - expected.keys():
        raise UserError(f"cannot place {key}: {network} has no such tensor")
    for key, shape in expected.items():
        if key not in tensors and key.endswith(_COUNTER):
            continue
        if key not in tensors:
            raise UserError(f"no value for {key} of {network} in the checkpoint")
        if tensors[key].shape != shape:
            raise UserError(f"{key} is {tuple(tensors[key].shape)}, expected {tuple(shape)}")


def _check_values(tensors: Tensors) -> None:
    for key, value in tensors.items():
        is_plain = value.layout == torch.strided and not value.is_quantized and not value.is_meta
        if not is_plain or not (value.dtype in _FLOATS or (value.dtype == torch.int64 and key.endswith(_COUNTER))):
            raise UserError(f"{key} is a {value.dtype} tensor of layout {value.layout}: expected plain numbers")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise UserError(f"{key} claims {tuple(value.shape)} numbers and has fewer: expected each of them")
        if not value.isfinite().all():
            raise UserError(f"{key} has values that are not finite: the weights of a run that diverged")
