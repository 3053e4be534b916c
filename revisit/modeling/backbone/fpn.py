"""Detectron2's FPN over any backbone whose maps are called res2 to res5."""

from torch import nn

from detectron2.config import CfgNode
from detectron2.modeling import FPN, Backbone
from detectron2.modeling.backbone.fpn import LastLevelMaxPool, LastLevelP6P7


def fpn_over(bottom_up: Backbone, cfg: CfgNode) -> FPN:
    """Detectron2's FPN of MODEL.FPN over a backbone whose maps are called res2 to res5, some of them.

    Maps of MODEL.FPN.OUT_CHANNELS, ``p2`` over res2 to ``p5`` over res5: above them ``p6`` by pooling; for a RetinaNet
    ``p6`` and ``p7`` by convolutions of res5. All as Detectron2's builders for either make them.
    """
    options = cfg.MODEL.FPN
    top = LastLevelMaxPool()
    if cfg.MODEL.META_ARCHITECTURE == "RetinaNet":
        top = LastLevelP6P7(bottom_up.output_shape()["res5"].channels, options.OUT_CHANNELS)
    return FPN(
        bottom_up=bottom_up,
        in_features=options.IN_FEATURES,
        out_channels=options.OUT_CHANNELS,
        norm=options.NORM,
        top_block=top,
        fuse_type=options.FUSE_TYPE,
    )


def below(backbone: nn.Module) -> nn.Module:
    """What a pyramid is built on, or a backbone without one."""
    return getattr(backbone, "bottom_up", backbone)
