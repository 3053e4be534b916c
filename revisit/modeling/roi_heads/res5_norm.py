"""The RoI heads of MoCo's C4 detectors (arXiv 1911.05722, A.1): res5 for every region, with one more BN after it."""

from torch import nn

from detectron2.config import CfgNode
from detectron2.layers import get_norm
from detectron2.modeling import ROI_HEADS_REGISTRY
from detectron2.modeling.roi_heads import Res5ROIHeads


@ROI_HEADS_REGISTRY.register()
class Res5NormROIHeads(Res5ROIHeads):
    """Detectron2's Res5ROIHeads whose res5 ends in MODEL.RESNETS.NORM.

    Contrastive weights carry no fixed statistics that the box head could rely on: the added layer normalises res5's
    output (configs/detection/voc_faster_rcnn_R50_C4.yaml).
    """

    @classmethod
    def _build_res5_block(cls, cfg: CfgNode) -> tuple[nn.Sequential, int]:
        blocks, out_channels = super()._build_res5_block(cfg)
        blocks.add_module("norm", get_norm(cfg.MODEL.RESNETS.NORM, out_channels))
        return blocks, out_channels
