"""Networks that own their pixels: images are normalised as the config says, on the network's device."""

import torch
from torch import Tensor, nn

from revisit.data.to_device import to_device

from detectron2.config import CfgNode


class SeesPixels(nn.Module):
    """Base class of a meta-architecture of ours, with Detectron2's names for MODEL.PIXEL_MEAN and MODEL.PIXEL_STD."""

    def __init__(self, cfg: CfgNode):
        super().__init__()
        self.register_buffer("pixel_mean", torch.tensor(cfg.MODEL.PIXEL_MEAN).view(-1, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(cfg.MODEL.PIXEL_STD).view(-1, 1, 1), persistent=False)

    @property
    def device(self) -> torch.device:
        """The device of its weights, which images are moved to."""
        return self.pixel_mean.device

    def normalized(self, images: Tensor) -> Tensor:
        """Images (..., 3, H, W) uint8, less MODEL.PIXEL_MEAN and over MODEL.PIXEL_STD, on the network's device."""
        return (to_device(images, self.device) - self.pixel_mean) / self.pixel_std
