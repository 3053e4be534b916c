"""A frozen network that another one learns from, on the same views."""

import logging
from functools import cached_property

import torch
from torch import Tensor

from revisit.checkpoint.backbone_file import load_backbone
from revisit.checkpoint.convert import as_rgb, for_channels
from revisit.checkpoint.flags import check_channels
from revisit.checkpoint.sources import source_layouts
from revisit.data.images.deep_images import format_flags, format_of, pixel_format
from revisit.errors import expect
from revisit.keys import value_of
from revisit.modeling.losses.queue_scores import at_least_float32
from revisit.modeling.meta_arch.pretraining import unit_rows
from revisit.network.network import Network

from detectron2.config import CfgNode
from detectron2.engine import HookBase

logger = logging.getLogger(__name__)


def load_frozen(cfg: CfgNode, key: str) -> Network:
    """Of the weights that a key names. Raises UserError for a file without a whole backbone, or for other images than
    the run's."""
    name = value_of(cfg, key)
    with torch.device("cpu"):  # also in a dry run, which builds all else without values
        weights = load_backbone(name)
        check_channels(weights.flags, cfg, f"{key} {name}")
        weights = for_channels(as_rgb(weights), cfg)
        ours = format_flags(pixel_format(cfg).seen)
        for other, value in format_flags(format_of(weights.flags, ()).seen).items():
            value_here = ours.get(other, 8)
            expect(value == value_here, f"{key} wants {other} {value}, and images have {value_here}")
        network = Network.of(weights).requires_grad_(False)
    mean, std = ([round(value, 2) for value in each.flatten().tolist()] for each in (network.mean, network.std))
    logger.info(f"{key}, frozen, {name}: {network.title}; less {mean}, over {std}; {weights.origin}")
    layout = source_layouts().get(weights.source)
    if layout and layout.SHARED_WITH:
        logger.warning(f"the pixel statistics of {key} are taken for granted: {layout.SHARED_WITH}")
    return network


def pooled_rows(maps: list[Tensor]) -> Tensor:
    """Unit rows (sum of N, C): the averages of maps (N, C, h, w) of any sizes."""
    return unit_rows(torch.cat([at_least_float32(each).mean(dim=(2, 3)) for each in maps]))


class SameNetwork(HookBase):
    """Keeps a frozen network's digest in the checkpoints, which do not have its tensors, and demands it of a resumed
    run."""

    def __init__(self, network: Network, key: str):
        self._network, self._key = network, key

    @cached_property
    def _digest(self) -> str:
        return self._network.digest("backbone", pixels=True)

    def state_dict(self) -> dict:
        return {"digest": self._digest}

    def load_state_dict(self, state: dict) -> None:
        expect(
            state["digest"] == self._digest,
            f"cannot resume: {self._key} is not the network that this run began with; name its file",
        )
