"""A network that owns its pixels: what it was trained to see is a part of it."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from revisit.checkpoint.backbone_file import load_backbone
from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.convert import BackboneWeights, for_images
from revisit.checkpoint.flags import flags_of, flags_to_config
from revisit.errors import expect, translated
from revisit.modeling.backbone.description import Flags
from revisit.modeling.losses.queue_scores import at_least_float32

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_backbone
from detectron2.structures import ImageList


class Network(nn.Module):
    """A backbone in evaluation mode: (N, n, H, W) uint8, RGB or channels -> maps by name,
    (N, C, h, w) float32, the finest first.

    ``flags`` are the config values that its weights are valid under, ``title`` says which network it is.

    Args:
        network: one of Detectron2's backbones, for RGB or for channels; it may have a pyramid.
        maps: names of those that are wanted, all by default.
    """

    mean: Tensor
    std: Tensor
    network: Any

    def __init__(self, network: nn.Module, flags: Flags, title: str = "", maps: Sequence[str] = ()):
        super().__init__()
        self.network = network
        self.flags = flags
        self.title = title
        self._maps = maps
        for name in ("mean", "std"):
            values = torch.tensor(flags[f"MODEL.PIXEL_{name.upper()}"])
            self.register_buffer(name, values.view(-1, 1, 1), persistent=False)
        self.to(memory_format=torch.channels_last)  # convolutions of a CPU take less time
        self.eval()

    @classmethod
    def of(cls, weights: BackboneWeights) -> Self:
        """That of weights that were read, for images in their order of channels."""
        network = weights.description.build(flags_to_config(weights.flags))
        network.load_state_dict(weights.tensors, strict=False)  # older files have no num_batches_tracked
        return cls(network, weights.flags, weights.title)

    @classmethod
    def of_config(cls, cfg: CfgNode) -> Self:
        """MODEL.BACKBONE with the tensors of MODEL.WEIGHTS, or drawn from SEED where that is empty; it is frozen.

        Raises:
            UserError: weights that do not fit, several maps, or images that are not RGB.
        """
        expect(cfg.INPUT.FORMAT == "RGB", f"INPUT.FORMAT is {cfg.INPUT.FORMAT}: frozen features are of RGB images")
        torch.manual_seed(cfg.SEED)
        model = nn.ModuleDict({"backbone": build_backbone(cfg)})  # as checkpoints of runs call it
        network = cls(model["backbone"], flags_of(cfg, None))
        maps = network.output_shape()
        expect(
            len(maps) == 1,
            f"MODEL.BACKBONE.NAME {cfg.MODEL.BACKBONE.NAME} gives {', '.join(maps)}: expected one map "
            "(MODEL.RESNETS.OUT_FEATURES)",
        )
        if cfg.MODEL.WEIGHTS:
            with translated(f"loading MODEL.WEIGHTS {cfg.MODEL.WEIGHTS}"):
                RevisitCheckpointer(model, cfg).load(cfg.MODEL.WEIGHTS)
        return network.requires_grad_(False).to(cfg.MODEL.DEVICE)

    def output_shape(self) -> dict[str, ShapeSpec]:
        """Channels and stride of every map by name, as Detectron2's backbones say them."""
        shapes = self.network.output_shape()
        return {name: shapes[name] for name in self._maps or shapes}

    @property
    def last(self) -> str:
        """Name of the coarsest map."""
        return list(self.output_shape())[-1]

    @property
    def shape(self) -> ShapeSpec:
        """Channels of the last map, and its stride in px."""
        return self.output_shape()[self.last]

    def normalized(self, images: Tensor) -> Tensor:
        """Images (..., n, H, W), 0 to 255, less the mean and over the deviation, on the network's device."""
        ours = len(self.mean)
        theirs = images.shape[-3]
        expect(
            ours == theirs,
            f"the network sees {ours} channels, and images have {theirs}: expected weights that were trained on such "
            "images, such as those of a pretraining",
        )
        return (images.to(self.mean.device).type_as(self.mean) - self.mean) / self.std

    def padded(self, image: Tensor) -> Tensor:
        """(1, n, H, W): an image (n, h, w), normalised, and then padded as a detector pads it for this backbone."""
        return ImageList.from_tensors([self.normalized(image)], self.network.size_divisibility).tensor

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps = self.network(self.normalized(images))
        return {name: maps[name] for name in self._maps or maps}

    def last_map(self, images: Tensor) -> Tensor:
        """(N, C, h, w) of the images (N, n, H, W)."""
        *_, last = self(images).values()
        return at_least_float32(last)

    def map_of(self, image: np.ndarray) -> Tensor:
        """(C, h, w): the last map of one (H, W, n) image."""
        return self.last_map(torch.from_numpy(image).permute(2, 0, 1)[None])[0]

    def pooled(self, images: Tensor) -> Tensor:
        """(N, C): the average of each image's last map."""
        return self.last_map(images).mean(dim=(2, 3))

    def digest(self, name: str = "network", *, pixels: bool = False) -> str:
        """A sha256 of all names and numbers, with ``pixels`` also of mean and deviation.

        ``name`` is what records of a kind call the network, so that those of older versions still have this digest.
        """
        tensors = self.network.state_dict(prefix=f"{name}.")
        return digest_of({**tensors, "mean": self.mean, "std": self.std} if pixels else tensors)


def load_network(weights: str, images: Sequence[dict] | Flags = ()) -> Network:
    """Of a converted file, of a run's checkpoint, of anything that tools/convert_to_d2.py reads, or of a name such as
    ``imagenet:efficientnet_lite0``; for RGB, or for the channels that it was trained on, or for those of ``images``:
    see for_images.

    Raises:
        UserError: no backbone in the file, or no flag file next to it.
    """
    return Network.of(for_images(load_backbone(weights), images))


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """A sha256 of all names and numbers."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(value.cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
