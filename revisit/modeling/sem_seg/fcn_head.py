"""MoCo's FCN for semantic segmentation (arXiv 1911.05722, A.1): two convolutions and a classifier on res5."""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F

from revisit.modeling.sem_seg.pixel_head import PixelHead, head_options

from detectron2.config import CfgNode, configurable
from detectron2.layers import Conv2d, ShapeSpec, get_norm
from detectron2.modeling import SEM_SEG_HEADS_REGISTRY
from fvcore.nn import weight_init

NUM_CONVS = 2


@SEM_SEG_HEADS_REGISTRY.register()
class RevisitFCNHead(PixelHead):
    """Two 3x3 convolutions with BN and ReLU, dilated, then a 1x1 convolution without bias.

    Args:
        in_channels: of the backbone's map.
        num_classes: logits per pixel.
        channels: of the two convolutions; the protocol has 256.
        dilation: of the two convolutions; 6 for VOC, 1 for Cityscapes.
        norm: Detectron2's name of their normalisation.
        options: of PixelHead.
    """

    @configurable
    def __init__(
        self, *, in_channels: int, num_classes: int, channels: int, dilation: int, norm: str, **options: object
    ):
        convs = [
            Conv2d(
                in_channels if index == 0 else channels,
                channels,
                kernel_size=3,
                padding=dilation,
                dilation=dilation,
                bias=False,
                norm=get_norm(norm, channels),
                activation=F.relu,
            )
            for index in range(NUM_CONVS)
        ]
        for conv in convs:
            weight_init.c2_msra_fill(conv)
        predictor = Conv2d(channels, num_classes, kernel_size=1, bias=False)
        nn.init.normal_(predictor.weight, std=0.01)
        super().__init__(nn.Sequential(*convs, predictor), **options)

    @classmethod
    def from_config(cls, cfg: CfgNode, input_shape: dict[str, ShapeSpec]) -> dict[str, object]:
        """From MODEL.SEM_SEG_HEAD."""
        return {**head_options(cfg, input_shape), "dilation": cfg.MODEL.SEM_SEG_HEAD.DILATION}
