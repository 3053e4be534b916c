"""A frozen network that another one learns from, on the same views."""

import hashlib
import logging
from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor, nn

from revisit.checkpoint.backbone_file import load_backbone
from revisit.checkpoint.convert import BackboneWeights, as_rgb
from revisit.checkpoint.flags import flags_to_config
from revisit.checkpoint.sources import source_layouts
from revisit.data.images.deep_images import bit_depth, depth_key
from revisit.errors import expect
from revisit.keys import value_of
from revisit.modeling.losses.queue_scores import at_least_float32
from revisit.modeling.meta_arch.pretraining import unit_rows

from detectron2.config import CfgNode
from detectron2.engine import HookBase

logger = logging.getLogger(__name__)


class FrozenNetwork(nn.Module):
    """A backbone for RGB with its own pixel statistics: (N, 3, H, W) uint8 RGB -> its last map, (N, Ct, h, w) float32.

    It takes no gradient, and its batch norm stays in evaluation mode.
    """

    def __init__(self, weights: BackboneWeights):
        super().__init__()
        self.title, self.origin = weights.title, weights.origin
        self.backbone = weights.description.build(flags_to_config(weights.flags))
        self.backbone.load_state_dict(weights.tensors, strict=False)  # counters may be missing
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(weights.flags[f"MODEL.PIXEL_{name.upper()}"]).view(3, 1, 1))
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        maps = self.backbone((images - self.mean) / self.std)
        return at_least_float32(list(maps.values())[-1])

    @cached_property
    def digest(self) -> str:
        return digest_of(self.state_dict())


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """A sha256 of all names and numbers."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(value.cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def load_frozen(cfg: CfgNode, key: str) -> FrozenNetwork:
    """Of the weights that a key names. Raises UserError for a file without a whole backbone, or of another depth."""
    name = value_of(cfg, key)
    with torch.device("cpu"):  # also in a dry run, which builds all else without values
        weights = load_backbone(name)
        ours, theirs = bit_depth(cfg) or 8, weights.flags.get(depth_key())
        expect(theirs in (None, ours), f"{key} wants {depth_key()} {theirs}, and images have {ours}")
        network = FrozenNetwork(as_rgb(weights))
    mean, std = ([round(value, 2) for value in each.flatten().tolist()] for each in (network.mean, network.std))
    logger.info(f"{key}, frozen, {name}: {network.title}; less {mean}, over {std}; {network.origin}")
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

    def __init__(self, network: FrozenNetwork, key: str):
        self._network, self._key = network, key

    def state_dict(self) -> dict:
        return {"digest": self._network.digest}

    def load_state_dict(self, state: dict) -> None:
        same = state["digest"] == self._network.digest
        expect(same, f"cannot resume: {self._key} is not the network that this run began with; name its file")
