"""The maps of a start's network: of its backbone, or of the pyramid that was learned with it."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn

from revisit.checkpoint.backbone_file import load_backbone
from revisit.checkpoint.convert import BackboneWeights, for_images
from revisit.checkpoint.detector_parts import PYRAMID
from revisit.checkpoint.flags import flags_to_config, read_flags
from revisit.checkpoint.named_weights import weights_file
from revisit.checkpoint.reading import read_checkpoint, tensors_of
from revisit.data.views.resampling import resize
from revisit.errors import UserError, expect, translated
from revisit.files import is_url
from revisit.keys import with_values
from revisit.modeling.backbone.description import Flags, Tensors
from revisit.modeling.backbone.fpn import fpn_over
from revisit.network.network import Network

from detectron2.config import CfgNode
from detectron2.modeling import build_backbone

LATERAL = re.compile(r"fpn_lateral(\d)\.weight")
LONGEST = 8  # short sides, of a long side: that of a strip of a few px would take all memory
MULTIPLE = 32  # px: both sides of an image, so that every map covers it whole

Built = tuple[nn.Module, Tensors, list[str]]  # a network, the tensors that it has to have, its maps, the finer first


def network_maps(
    weights: str | Path,
    stride: int,
    pyramid: bool = False,
    count: int = 2,
    images: Sequence[dict] | Flags = (),
) -> Network:
    """A frozen network with a map of this stride and, where there are any, of the next levels.

    Args:
        weights: a converted file, a run's checkpoint or a name (docs/weights.md).
        stride: px of the finer map, a power of two; a ViT's map of 14 px counts as one of 16.
        pyramid: whether they are maps of the pyramid (FPN) in the weights, instead of the backbone's.
        count: of maps, at most.
        images: that it is to see, as of for_images.

    Raises:
        UserError: weights of no backbone, or of one without a map of this stride, or without a pyramid.
    """
    backbone = for_images(load_backbone(weights), images)
    levels = [round(math.log2(stride)) + more for more in range(count)]
    make = _pyramid if pyramid else _backbone
    with translated(f"{weights}: a map of stride {stride}"):
        network, tensors, names = make(weights, backbone, levels)
    missing = network.load_state_dict(tensors, strict=False).missing_keys
    lacking = [name for name in missing if not name.endswith("num_batches_tracked")]
    expect(not lacking, f"{weights} lacks {len(lacking)} tensors of its map of stride {stride}")
    return Network(network, backbone.flags, backbone.title, names).requires_grad_(False)


def resized(image: np.ndarray, short_side: int, stride: int) -> np.ndarray:
    """(H, W, C) uint8 with about ``short_side`` px, of which the long side has LONGEST times as many at most, and sides
    that are multiples of 32 px, or else of ``stride``, that of the finest map."""
    multiple = stride if MULTIPLE % stride else MULTIPLE
    short, long = sorted(image.shape[:2])
    scale = min(short_side / short, LONGEST * short_side / long)
    height, width = (max(1, round(side * scale / multiple)) * multiple for side in image.shape[:2])
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    return resize(image, (width, height), method)


def _backbone(weights: str | Path, backbone: BackboneWeights, levels: list[int]) -> Built:
    """Without levels above that of the backbone's last map."""
    with torch.device("meta"):
        *_, last = backbone.description.build(flags_to_config(backbone.flags)).output_shape().values()
    deepest = max(levels[0], round(math.log2(last.stride)))
    names = [f"res{level}" for level in levels if level <= deepest]
    try:
        network = build_backbone(_config(backbone, names))
    except UserError as error:
        raise UserError(f"{weights} has no map of stride {2 ** levels[0]}, give another --stride: {error}") from error
    return network, backbone.tensors, names


def _pyramid(weights: str | Path, backbone: BackboneWeights, levels: list[int]) -> Built:
    """An FPN of the levels, the channels and the norm that its tensors show, which fuses as its flags say."""
    path = weights_file(str(weights), "checkpoint")
    content = read_checkpoint(path)
    learned = PYRAMID.of(tensors_of(content))
    has = sorted(int(match[1]) for match in map(LATERAL.fullmatch, learned) if match)
    expect(has, f"{weights} has no pyramid (FPN): leave --features pyramid out, for maps of its backbone")
    flags = content.get("flags") or read_flags(weights if is_url(str(weights)) else path)[0]
    fuse = flags.get("MODEL.FPN.FUSE_TYPE", "sum") if isinstance(flags, dict) else "sum"
    expect(levels[0] in has, f"{weights} has maps of the strides {[2**level for level in has]} in its pyramid")
    maps = [f"res{level}" for level in has]
    norm = ""
    if f"fpn_output{has[0]}.norm.weight" in learned:
        norm = "BN" if f"fpn_output{has[0]}.norm.running_mean" in learned else "GN"
    cfg = with_values(
        _config(backbone, maps),
        {
            "MODEL.FPN.IN_FEATURES": maps,
            "MODEL.FPN.OUT_CHANNELS": len(learned[f"fpn_lateral{has[0]}.weight"]),
            "MODEL.FPN.NORM": norm,
            "MODEL.FPN.FUSE_TYPE": fuse,
        },
    )
    network = fpn_over(build_backbone(cfg), cfg)
    below = {f"bottom_up.{key}": value for key, value in backbone.tensors.items()}
    return network, learned | below, [f"p{level}" for level in levels if level in has]


def _config(backbone: BackboneWeights, maps: list[str]) -> CfgNode:
    """Of a backbone that has these maps."""
    return with_values(
        flags_to_config(backbone.flags),
        {
            "MODEL.RESNETS.OUT_FEATURES": maps,
            "MODEL.TIMM.OUT_FEATURES": maps,
            "MODEL.BACKBONE.NAME": backbone.description.BUILDER,
            "MODEL.BACKBONE.FREEZE_AT": 0,
        },
    )
