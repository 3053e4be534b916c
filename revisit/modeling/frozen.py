"""A pretrained backbone as a fixed function of pixels, for the studies of frozen features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from revisit.checkpoint.checkpointer import RevisitCheckpointer

from detectron2.config import CfgNode
from detectron2.modeling import build_backbone


class FrozenBackbone(nn.Module):
    """MODEL.BACKBONE with the tensors of MODEL.WEIGHTS, or drawn from SEED where that is empty; BN in evaluation mode.

    (N, 3, H, W) uint8 RGB -> the maps of MODEL.RESNETS.OUT_FEATURES by name, (N, C, h, w) float32, without gradient.

    Raises:
        UserError: on construction, weights that lack a tensor, or that were made under another configuration.
    """

    def __init__(self, cfg: CfgNode):
        super().__init__()
        torch.manual_seed(cfg.SEED)
        self.backbone = build_backbone(cfg)
        self.register_buffer("_mean", torch.tensor(cfg.MODEL.PIXEL_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("_std", torch.tensor(cfg.MODEL.PIXEL_STD).view(3, 1, 1), persistent=False)
        if cfg.MODEL.WEIGHTS:
            RevisitCheckpointer(self, cfg).load(cfg.MODEL.WEIGHTS)
        self.requires_grad_(False).eval().to(cfg.MODEL.DEVICE)

    def train(self, mode: bool = True) -> FrozenBackbone:
        return super().train(False)  # a frozen network has no other mode

    @torch.no_grad()
    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return self.backbone((images.to(self._mean.device) - self._mean) / self._std)
