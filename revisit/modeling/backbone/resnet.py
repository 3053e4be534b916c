"""The one backbone builder: Detectron2's own ResNet, with the dilations, stems and widths that are needed here."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from revisit.config import PIXELWISE

from detectron2.config import CfgNode
from detectron2.layers import CNNBlockBase, Conv2d, ShapeSpec, get_norm
from detectron2.modeling import BACKBONE_REGISTRY
from detectron2.modeling.backbone.resnet import (
    BasicBlock,
    BasicStem,
    BottleneckBlock,
    ResNet,
    build_resnet_backbone,
)
from fvcore.nn import weight_init

BLOCKS_PER_STAGE = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
BASIC_DEPTHS = (18, 34)
INPUT = "input"


class CifarStem(CNNBlockBase):
    """Stem for 32-px images: one 3x3 convolution of stride 1, no pooling. (N, 3, H, W) -> (N, C, H, W)."""

    def __init__(self, in_channels: int, out_channels: int, norm: str):
        super().__init__(in_channels, out_channels, 1)
        self.conv1 = Conv2d(
            in_channels,
            out_channels,
            kernel_size=3,
            padding=1,
            bias=False,
            norm=get_norm(norm, out_channels),
        )
        weight_init.c2_msra_fill(self.conv1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(self.conv1(x))


class DilatedBasicBlock(BasicBlock):
    """Detectron2's BasicBlock with both 3x3 convolutions dilated; same parameters, same names."""

    def __init__(self, *args: object, dilation: int = 1, **kwargs: object):
        super().__init__(*args, **kwargs)
        for conv in (self.conv1, self.conv2):
            conv.dilation = conv.padding = (dilation, dilation)


@BACKBONE_REGISTRY.register()
def build_revisit_resnet_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> ResNet:
    """Build a Detectron2 ResNet from MODEL.RESNETS and MODEL.BACKBONE.FREEZE_AT.

    Detectron2's core builder does it wherever its options suffice. Beyond them: RES4_DILATION and
    RES5_DILATION in {1, 2, 4}, where a dilated stage has stride 1; RES4_STRIDE 1 without dilation;
    STEM_TYPE cifar; dilation and any RES2_OUT_CHANNELS for the BasicBlocks of depth 18 and 34.
    Parameter names are the core builder's throughout, so weights are interchangeable. Under a meta-architecture
    for pixelwise prediction the network returns, beside its maps, ``INPUT``: a view of its input without channels,
    (N, 0, H, W). Heads have to know its size, which a map of some stride does not tell.
    """
    options = cfg.MODEL.RESNETS
    _check_options(cfg)
    needs_own = (
        options.STEM_TYPE != "basic"
        or options.RES4_STRIDE != 2
        or options.RES4_DILATION != 1
        or options.RES5_DILATION not in (1, 2)
        or (options.DEPTH in BASIC_DEPTHS and (options.RES5_DILATION, options.RES2_OUT_CHANNELS) != (1, 64))
    )
    resnet = _make_resnet(cfg, input_shape) if needs_own else build_resnet_backbone(cfg, input_shape)
    if cfg.MODEL.META_ARCHITECTURE in PIXELWISE:
        resnet.register_forward_hook(_add_input_size)
    return resnet


def _add_input_size(module: ResNet, args: tuple[Tensor], maps: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**maps, INPUT: args[0][:, :0]}


def _make_resnet(cfg: CfgNode, input_shape: ShapeSpec) -> ResNet:
    options = cfg.MODEL.RESNETS
    make_stem = CifarStem if options.STEM_TYPE == "cifar" else BasicStem
    stem = make_stem(input_shape.channels, options.STEM_OUT_CHANNELS, options.NORM)
    stages = [_make_stage(options, index) for index in range(4)]
    return ResNet(stem, stages, out_features=options.OUT_FEATURES, freeze_at=cfg.MODEL.BACKBONE.FREEZE_AT)


def _make_stage(options: CfgNode, index: int) -> list[CNNBlockBase]:
    """Blocks of stage ``index`` (0 is res2)."""
    dilation = (1, 1, options.RES4_DILATION, options.RES5_DILATION)[index]
    stride = (1, 2, options.RES4_STRIDE, 2)[index] if dilation == 1 else 1
    num_blocks = BLOCKS_PER_STAGE[options.DEPTH][index]
    out_channels = options.RES2_OUT_CHANNELS * 2**index
    block: dict[str, object] = {"block_class": DilatedBasicBlock, "dilation": dilation}
    if options.DEPTH not in BASIC_DEPTHS:
        block = {
            "block_class": BottleneckBlock,
            "dilation": dilation,
            "bottleneck_channels": options.NUM_GROUPS * options.WIDTH_PER_GROUP * 2**index,
            "num_groups": options.NUM_GROUPS,
            "stride_in_1x1": options.STRIDE_IN_1X1,
        }
    return ResNet.make_stage(
        num_blocks=num_blocks,
        stride_per_block=[stride] + [1] * (num_blocks - 1),
        in_channels=options.STEM_OUT_CHANNELS if index == 0 else out_channels // 2,
        out_channels=out_channels,
        norm=options.NORM,
        **block,
    )


def _check_options(cfg: CfgNode) -> None:
    options = cfg.MODEL.RESNETS
    for name in ("RES4_DILATION", "RES5_DILATION"):
        if options[name] not in (1, 2, 4):
            raise ValueError(f"MODEL.RESNETS.{name} is {options[name]}, expected 1, 2 or 4")
    if options.RES4_STRIDE not in (1, 2):
        raise ValueError(f"MODEL.RESNETS.RES4_STRIDE is {options.RES4_STRIDE}, expected 1 or 2")
    if options.DEPTH not in BLOCKS_PER_STAGE:
        raise ValueError(
            f"MODEL.RESNETS.DEPTH is {options.DEPTH}, expected one of {', '.join(map(str, BLOCKS_PER_STAGE))}"
        )
