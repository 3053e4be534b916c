"""DeepLab-v3's head (arXiv 1706.05587, Section 3.3) with Detectron2's ASPP."""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F

from revisit.modeling.sem_seg.pixel_head import PixelHead, head_options

from detectron2.config import CfgNode, configurable
from detectron2.layers import ASPP, Conv2d, ShapeSpec
from detectron2.modeling import SEM_SEG_HEADS_REGISTRY

DROPOUT = 0.1  # the paper is silent; DeepLab's own rate


@SEM_SEG_HEADS_REGISTRY.register()
class RevisitDeepLabV3Head(PixelHead):
    """ASPP (a 1x1 and three dilated 3x3 convolutions, image pooling), projection, dropout, 1x1 classifier.

    Detectron2's DeepLab project registers a DeepLabV3Head, whose pooling window is fixed: it refuses crops of 513
    px and images of 480 x 640. This one pools over whatever it gets.

    Args:
        in_channels: of the backbone's map.
        num_classes: logits per pixel.
        channels: of every branch and of the projection; the protocol has 256.
        dilations: of the three 3x3 convolutions; the protocol has 12, 24, 36.
        norm: Detectron2's name of the normalisation, everywhere but behind image pooling, whose map is 1 x 1.
        options: of PixelHead.
    """

    @configurable
    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        channels: int,
        dilations: tuple[int, int, int],
        norm: str,
        **options: object,
    ):
        aspp = ASPP(in_channels, channels, list(dilations), norm=norm, activation=F.relu, dropout=DROPOUT)
        predictor = Conv2d(channels, num_classes, kernel_size=1)
        nn.init.normal_(predictor.weight, std=0.01)
        nn.init.zeros_(predictor.bias)
        super().__init__(nn.Sequential(aspp, predictor), **options)

    @classmethod
    def from_config(cls, cfg: CfgNode, input_shape: dict[str, ShapeSpec]) -> dict[str, object]:
        """From MODEL.SEM_SEG_HEAD."""
        return {**head_options(cfg, input_shape), "dilations": tuple(cfg.MODEL.SEM_SEG_HEAD.ASPP_DILATIONS)}
