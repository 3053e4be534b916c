"""Which images share batch statistics: groups of MOCO.BN_GROUP, however many processes there are.

``grouped_batch_norm.py`` has the layers that normalise by them.
"""

import logging
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from revisit.compat.private_names import BatchNorm
from revisit.errors import expect
from revisit.keys import SWITCH, declare, integer

from detectron2.config import CfgNode
from detectron2.modeling import build_backbone
from detectron2.utils import comm

FEW_VALUES = 8  # too few for a mean and a variance: of one the normalised value is 0, of two 1 and -1

logger = logging.getLogger(__name__)

moco = partial(declare, read_by="MoCo")
moco(
    "MOCO.BN_GROUP",
    128,
    "Images that share batch statistics: a part of a process's pass, or whole passes of neighbouring processes. 0: the "
    "pass of each process. Each of the paper's two GPUs ran 128. Networks without batch norm do not read it.",
    integer(unit="images"),
    paper=128,
)
moco("MOCO.SHUFFLE_BN", True, "Shuffle the momentum encoder's images over these groups.", SWITCH, paper=True)


class BNGroups(NamedTuple):
    """How the images that all processes run at a time, in their order, fall into equal groups of consecutive ones
    (docs/method.md: Batch statistics). ``splits`` or ``processes`` is 1."""

    images: int  # in a group
    splits: int  # groups in a process's pass
    processes: int  # neighbours whose whole passes are a group
    count: int  # groups in all


def batch_norms(module: nn.Module) -> Iterator[BatchNorm]:
    """The batch norms in a module."""
    return (layer for layer in module.modules() if isinstance(layer, BatchNorm))


def meta_backbone(cfg: CfgNode) -> nn.Module:
    """The backbone of a config without values, whose structure and shapes can be read."""
    with torch.device("meta"):
        return build_backbone(cfg)


def bn_groups(cfg: CfgNode, share: int, backbone: nn.Module | None = None) -> BNGroups | None:
    """The groups of a config; None for a backbone without batch norm.

    Args:
        share: images of a process's batch.
        backbone: the backbone, if it is built already.

    Raises:
        UserError: groups of that size do not fit.
    """
    if not any(batch_norms(backbone or meta_backbone(cfg))):
        return None
    part = share // cfg.SOLVER.ACCUMULATION_STEPS
    processes = cfg.SOLVER.IMS_PER_BATCH // share
    size = cfg.MOCO.BN_GROUP or part
    groups = _layout(size, part, processes)
    expect(
        groups,
        f"MOCO.BN_GROUP {size}, but each process (of {processes}) runs {part} images at a time: expected a size "
        "that divides them, or whole passes of neighbouring processes; 0 is the whole pass of a process",
    )
    return groups


def _layout(size: int, part: int, processes: int) -> BNGroups | None:
    """Groups of ``size`` images where ``processes`` run ``part`` each; None if there are no such groups."""
    if part % size == 0:
        splits = part // size
        return BNGroups(size, splits, 1, splits * processes)
    pooled = size // part
    if size % part == 0 and processes % pooled == 0:
        return BNGroups(size, 1, pooled, processes // pooled)
    return None


def whole_batch(cfg: CfgNode) -> BNGroups:
    """One group of the images of all processes."""
    return BNGroups(cfg.SOLVER.IMS_PER_BATCH, 1, comm.get_world_size(), 1)


def check_whole_batch(cfg: CfgNode, method: str) -> None:
    """Raise UserError where a method of that name would see its batch, and its one group, in parts."""
    parts = cfg.SOLVER.ACCUMULATION_STEPS
    expect(parts == 1, f"SOLVER.ACCUMULATION_STEPS {parts}: {method} learns from whole batches; expected 1")


def check_groups(cfg: CfgNode, share: int) -> None:
    """Raise UserError where groups do not fit, or have a single value of a channel, which is always normalised to 0."""
    backbone = meta_backbone(cfg)
    groups = bn_groups(cfg, share, backbone)
    expect(
        groups is None or values_of_group(cfg, groups.images, backbone) > 1,
        f"MOCO.BN_GROUP {cfg.MOCO.BN_GROUP} normalises a map of one place by one image alone, which makes all "
        "images alike: expected larger groups, or larger views",
    )


def warn_of_groups(cfg: CfgNode, share: int) -> None:
    """Warn of groups of few values, or of a single group, by whose statistics a key and its positive may know each
    other."""
    backbone = meta_backbone(cfg)
    groups = bn_groups(cfg, share, backbone)
    if groups is None:
        return
    name = f"MOCO.BN_GROUP {cfg.MOCO.BN_GROUP}"
    if values_of_group(cfg, groups.images, backbone) < FEW_VALUES:
        logger.warning(
            f"{name} normalises the smallest map by fewer than {FEW_VALUES} values, which tell images apart poorly: "
            "take larger groups, or larger views"
        )
    elif cfg.MOCO.SHUFFLE_BN and groups.count == 1:
        logger.warning(
            f"{name} is all that runs at a time, so MOCO.SHUFFLE_BN has no other group, and batch statistics may "
            f"tell which key belongs to which positive: take {_advice(cfg, groups.images, backbone)}"
        )


def _advice(cfg: CfgNode, images: int, backbone: nn.Module) -> str:
    """How a group of all images becomes several."""
    half = images // 2
    if images % 2 == 0 and values_of_group(cfg, half, backbone) >= FEW_VALUES:
        return f"MOCO.BN_GROUP {half}"
    return "a larger batch"


def values_of_group(cfg: CfgNode, images: int, backbone: nn.Module) -> int:
    """How many values of a channel a group of so many images has in the smallest map that batch norm normalises, over
    the passes of large and of small views; at most FEW_VALUES are counted. ``backbone``: that of ``meta_backbone``."""
    if images >= FEW_VALUES:
        return FEW_VALUES
    backbone.eval()
    views = cfg.VIEWS
    channels = len(cfg.MODEL.PIXEL_MEAN)
    values = [_smallest_map(backbone, channels, views.LARGE_SIZE)]
    if views.NUM_SMALL:
        values.append(views.NUM_SMALL * _smallest_map(backbone, channels, views.SMALL_SIZE))
    return min(FEW_VALUES, images * min(values))


def _smallest_map(backbone: nn.Module, channels: int, size: int) -> int:
    """Values of a channel in the smallest map that batch norm normalises, for an image of ``size`` px."""
    areas = []

    def note(values: torch.Tensor) -> torch.Tensor:
        areas.append(values[0, 0].numel())
        return values

    for layer in batch_norms(backbone):
        layer.forward = note  # in place of what takes most of the time on no device
    backbone(torch.empty(1, channels, size, size, device="meta"))
    return min(areas)
