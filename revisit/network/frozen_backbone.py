"""A pretrained backbone as a fixed function of pixels, for the projects on frozen features."""

from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.errors import expect, translated

from detectron2.config import CfgNode
from detectron2.modeling import build_backbone


class FrozenBackbone(nn.Module):
    """MODEL.BACKBONE with the tensors of MODEL.WEIGHTS, or drawn from SEED where that is empty; BN in evaluation mode.

    (N, 3, H, W) uint8 RGB -> its one map, ``map_name``, (N, C, h, w) float32, without gradient. Weights that do not
    fit, and a config that asks for several maps or for BGR, raise UserError.
    """

    def __init__(self, cfg: CfgNode):
        super().__init__()
        expect(cfg.INPUT.FORMAT == "RGB", f"INPUT.FORMAT is {cfg.INPUT.FORMAT}: frozen features are of RGB images")
        torch.manual_seed(cfg.SEED)
        self.backbone = build_backbone(cfg)
        maps = list(self.backbone.output_shape())
        name = f"MODEL.BACKBONE.NAME {cfg.MODEL.BACKBONE.NAME}"
        expect(len(maps) == 1, f"{name} gives {', '.join(maps)}: expected one map (MODEL.RESNETS.OUT_FEATURES)")
        self.map_name = maps[0]
        self.register_buffer("_mean", torch.tensor(cfg.MODEL.PIXEL_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("_std", torch.tensor(cfg.MODEL.PIXEL_STD).view(3, 1, 1), persistent=False)
        if cfg.MODEL.WEIGHTS:
            with translated(f"loading MODEL.WEIGHTS {cfg.MODEL.WEIGHTS}"):
                RevisitCheckpointer(self, cfg).load(cfg.MODEL.WEIGHTS)
        self.requires_grad_(False).eval().to(cfg.MODEL.DEVICE)

    @property
    def channels(self) -> int:
        """C of the map."""
        return self.backbone.output_shape()[self.map_name].channels

    @property
    def stride(self) -> int:
        """Of the map, px."""
        return self.backbone.output_shape()[self.map_name].stride

    def train(self, mode: bool = True) -> Self:
        return super().train(False)  # a frozen network has no other mode

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        return self.backbone((images.to(self._mean.device) - self._mean) / self._std)[self.map_name]

    def map_of(self, image: np.ndarray) -> Tensor:
        """(C, h, w): the map of one (H, W, 3) image."""
        return self(torch.from_numpy(image).permute(2, 0, 1)[None])[0]

    def pooled(self, images: Tensor) -> Tensor:
        """(N, C): the average of each image's map."""
        return self(images).mean(dim=(2, 3))
