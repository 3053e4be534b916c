"""Detectors over the ResNets of here: those of MoCo's VOC benchmark (arXiv 1911.05722, A.1), R50-dilated-C5 and
R50-C4, whose RoI heads are res5 for every region with one more BN after it; and Detectron2's FPN."""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from revisit.modeling.backbone.fpn import fpn_over
from revisit.modeling.backbone.resnet import build_revisit_resnet_backbone

from detectron2.config import CfgNode
from detectron2.layers import Conv2d, ShapeSpec, get_norm
from detectron2.modeling import BACKBONE_REGISTRY, FPN, ROI_HEADS_REGISTRY, Backbone
from detectron2.modeling.poolers import ROIPooler
from detectron2.modeling.roi_heads import Res5ROIHeads
from detectron2.structures import Boxes
from fvcore.nn import weight_init

C5_CHANNELS = 512


class DilatedC5(Backbone):
    """A ResNet's res5, then a 3x3 convolution + BN + ReLU, which feeds RPN and RoI head alike: ``c5``,
    (N, 512, H/s, W/s), s the stride of res5: 16 with RES5_DILATION 2."""

    def __init__(self, bottom_up: Backbone, norm: str):
        super().__init__()
        shape = bottom_up.output_shape()["res5"]
        self.bottom_up = bottom_up
        self.conv = Conv2d(
            shape.channels,
            C5_CHANNELS,
            kernel_size=3,
            padding=1,
            bias=False,
            norm=get_norm(norm, C5_CHANNELS),
        )
        weight_init.c2_msra_fill(self.conv)
        self._out_features = ["c5"]
        self._out_feature_channels = {"c5": C5_CHANNELS}
        self._out_feature_strides = {"c5": shape.stride}

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"c5": F.relu_(self.conv(self.bottom_up(x)["res5"]))}


@BACKBONE_REGISTRY.register()
def build_dilated_c5_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> DilatedC5:
    """Build it over ``build_revisit_resnet_backbone``, with MODEL.RESNETS.NORM on the extra convolution."""
    return DilatedC5(build_revisit_resnet_backbone(cfg, input_shape), cfg.MODEL.RESNETS.NORM)


@BACKBONE_REGISTRY.register()
def build_revisit_fpn_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> FPN:
    """``fpn_over`` a ``build_revisit_resnet_backbone``, which narrow and dilated ResNets need."""
    return fpn_over(build_revisit_resnet_backbone(cfg, input_shape), cfg)


@ROI_HEADS_REGISTRY.register()
class Res5NormROIHeads(Res5ROIHeads):
    """Detectron2's Res5ROIHeads whose res5 ends in MODEL.RESNETS.NORM.

    Contrastive weights carry no fixed statistics that the box head could rely on: the added layer normalises res5's
    output (configs/detection/voc_faster_rcnn_R50_C4.yaml). MODEL.BACKBONE.FREEZE_AT 5 freezes res5, which lies here.
    """

    @classmethod
    def _build_res5_block(cls, cfg: CfgNode) -> tuple[nn.Sequential, int]:
        blocks, out_channels = super()._build_res5_block(cfg)
        if cfg.MODEL.BACKBONE.FREEZE_AT >= 5:
            for block in blocks:
                block.freeze()
        blocks.add_module("norm", get_norm(cfg.MODEL.RESNETS.NORM, out_channels))
        return blocks, out_channels


class _InNCHW(torch.autograd.Function):
    """A channels-last map (N, C, H, W) as RoIAlign reads it; its gradient is channels-last, too."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        return x.to(torch.promote_types(x.dtype, torch.float32), memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad.to(ctx.dtype, memory_format=torch.channels_last)


def _maps_in_nchw(_: nn.Module, inputs: tuple[list[Tensor], list[Boxes]]) -> tuple[list[Tensor], list[Boxes]]:
    maps, boxes = inputs
    return [_InNCHW.apply(x) if x.requires_grad and not x.is_contiguous() else x for x in maps], boxes


def keep_layouts(model: nn.Module) -> None:
    """Let gradients of maps come back from a detector's poolers in the maps' layout.

    RoIAlign computes in NCHW, float32 at least. From there on a CPU takes ten times as long for the gradients of
    channels-last maps.
    """
    for module in model.modules():
        if isinstance(module, ROIPooler):
            module.register_forward_pre_hook(_maps_in_nchw)
