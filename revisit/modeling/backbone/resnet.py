"""ResNets of Detectron2's blocks, with the dilations, stems and widths that are needed here, and their description."""

from torch import Tensor, nn
from torch.nn import functional as F

from revisit.errors import UserError, expect
from revisit.keys import PIXELWISE, SWITCH, declare, of_detectron2, one_of, with_values
from revisit.modeling.backbone.description import BACKBONE_DESCRIPTIONS, BackboneDescription, Flags, Tensors

from detectron2.config import CfgNode
from detectron2.layers import CNNBlockBase, Conv2d, ShapeSpec, get_norm
from detectron2.modeling import BACKBONE_REGISTRY
from detectron2.modeling.backbone.resnet import BasicBlock, BasicStem, BottleneckBlock, ResNet
from detectron2.modeling.roi_heads import Res5ROIHeads
from fvcore.nn import weight_init

BLOCKS_PER_STAGE = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
BASIC_DEPTHS = (18, 34)
INPUT = "input"

# For build_revisit_resnet_backbone. The width is Detectron2's own STEM_OUT_CHANNELS, RES2_OUT_CHANNELS and (bottleneck
# blocks) WIDTH_PER_GROUP.
_STEM = one_of("basic", "cifar")
declare("MODEL.RESNETS.STEM_TYPE", "basic", "cifar: a 3 x 3 convolution of stride 1, no pooling.", _STEM)
declare("MODEL.RESNETS.RES4_STRIDE", 2, "1 keeps the resolution of res3 without dilation.", one_of(1, 2))
declare("MODEL.RESNETS.RES4_DILATION", 1, "1, 2 or 4; a dilated stage has stride 1.", one_of(1, 2, 4))
of_detectron2("MODEL.RESNETS.RES5_DILATION", rule=one_of(1, 2, 4))
declare(
    "MODEL.RESNETS.HALVE_FIRST_DILATION",
    False,
    "A dilated stage begins with half its dilation, as in torchvision and the multi-task code; not in MoCo's FCN.",
    SWITCH,
)


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

    What Detectron2's own builder can build has the same names, random numbers and outputs. Beyond it: RES4_DILATION and
    RES5_DILATION in {1, 2, 4}, where a dilated stage has stride 1; HALVE_FIRST_DILATION; RES4_STRIDE 1 without
    dilation; STEM_TYPE cifar; dilation and any RES2_OUT_CHANNELS for the BasicBlocks of depth 18 and 34.
    Under a meta-architecture for pixelwise prediction the network also returns ``INPUT``: a view of its
    input without channels, (N, 0, H, W). Heads have to know its size, which a map of some stride does not say.

    Raises:
        ValueError: deformable stages, which Detectron2's builder has, or groups at a depth that has none.
    """
    options = cfg.MODEL.RESNETS
    if any(options.DEFORM_ON_PER_STAGE) or (options.DEPTH in BASIC_DEPTHS and options.NUM_GROUPS > 1):
        raise ValueError("MODEL.RESNETS: expected no DEFORM_ON_PER_STAGE, and no groups at depths 18 and 34")
    make_stem = CifarStem if options.STEM_TYPE == "cifar" else BasicStem
    stem = make_stem(input_shape.channels, options.STEM_OUT_CHANNELS, options.NORM)
    count = max(("stem", "res2", "res3", "res4", "res5").index(name) for name in options.OUT_FEATURES)
    stages = [_make_stage(options, index) for index in range(count)]
    resnet = ResNet(stem, stages, out_features=options.OUT_FEATURES, freeze_at=cfg.MODEL.BACKBONE.FREEZE_AT)
    if cfg.MODEL.META_ARCHITECTURE in PIXELWISE:
        resnet.register_forward_hook(_add_input_size)
    return resnet


def _add_input_size(module: ResNet, args: tuple[Tensor], maps: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**maps, INPUT: args[0][:, :0]}


def _make_stage(options: CfgNode, index: int) -> list[CNNBlockBase]:
    """Blocks of stage ``index`` (0 is res2)."""
    dilation = (1, 1, options.RES4_DILATION, options.RES5_DILATION)[index]
    stride = (1, 2, options.RES4_STRIDE, 2)[index] if dilation == 1 else 1
    num_blocks = BLOCKS_PER_STAGE[options.DEPTH][index]
    out_channels = options.RES2_OUT_CHANNELS * 2**index
    block_class, block = DilatedBasicBlock, {}
    if options.DEPTH not in BASIC_DEPTHS:
        width = options.NUM_GROUPS * options.WIDTH_PER_GROUP * 2**index
        block_class = BottleneckBlock
        block = {
            "bottleneck_channels": width,
            "num_groups": options.NUM_GROUPS,
            "stride_in_1x1": options.STRIDE_IN_1X1,
        }
    stage = ResNet.make_stage(
        block_class,
        num_blocks,
        stride_per_block=[stride] + [1] * (num_blocks - 1),
        in_channels=options.STEM_OUT_CHANNELS if index == 0 else out_channels // 2,
        out_channels=out_channels,
        norm=options.NORM,
        dilation=dilation,
        **block,
    )
    if options.HALVE_FIRST_DILATION and dilation > 1:
        first = stage[0].conv1 if options.DEPTH in BASIC_DEPTHS else stage[0].conv2
        first.dilation = first.padding = (dilation // 2, dilation // 2)
    return stage


@BACKBONE_DESCRIPTIONS.register()
class ResNetDescription(BackboneDescription):
    """Of Detectron2's ResNet, whoever builds it."""

    NAME, NETWORK, BUILDER = "ResNet", ResNet, "build_revisit_resnet_backbone"
    FLAG_KEYS = (
        "MODEL.RESNETS.DEPTH",
        "MODEL.RESNETS.STEM_TYPE",
        "MODEL.RESNETS.STEM_OUT_CHANNELS",
        "MODEL.RESNETS.RES2_OUT_CHANNELS",
        "MODEL.RESNETS.NUM_GROUPS",
        "MODEL.RESNETS.WIDTH_PER_GROUP",
        "MODEL.RESNETS.STRIDE_IN_1X1",
    )
    PREFIXES = ("stem.", "res2.", "res3.", "res4.", "res5.")
    FOLDED = {"MODEL.RESNETS.NORM": "FrozenBN"}

    def build(self, cfg: CfgNode) -> ResNet:
        trained = {"MODEL.RESNETS.OUT_FEATURES": ["res5"], "MODEL.RESNETS.NORM": "BN", "MODEL.BACKBONE.FREEZE_AT": 0}
        return build_revisit_resnet_backbone(with_values(cfg, trained), ShapeSpec(channels=len(cfg.MODEL.PIXEL_MEAN)))

    def parts(self, module: nn.Module) -> list[str]:
        """In a C4 detector res5 belongs to the RoI heads, without the normalisation that MoCo adds after it."""
        if isinstance(module, Res5ROIHeads):
            return [f"res5.{name}" for name, _ in module.res5.named_children() if name != "norm"]
        return super().parts(module)

    def blocks(self, network: ResNet) -> list[list[str]]:
        """The stem, then every residual block."""
        blocks = [("stem", network.stem)]
        for stage in network.stage_names:
            blocks += [(f"{stage}.{name}", block) for name, block in getattr(network, stage).named_children()]
        return [[f"{name}.{of}" for of, _ in block.named_parameters()] for name, block in blocks]

    def title(self, flags: Flags) -> str:
        return f"ResNet-{flags['MODEL.RESNETS.DEPTH']}"

    def flags_of_tensors(self, tensors: Tensors, stated: Flags) -> Flags:
        """Depth and widths of a torchvision-style ResNet, whose strides lie in the 3x3 convolutions."""
        is_bottleneck = "res2.0.conv3.weight" in tensors
        depth = _depth_of(tensors, is_bottleneck)
        stem = _shape_of(tensors, "stem.conv1")
        first = _shape_of(tensors, "res2.0.conv1")
        middle = last = _shape_of(tensors, "res2.0.conv2")
        groups, width = 1, 64
        if is_bottleneck:
            last = _shape_of(tensors, "res2.0.conv3")
            groups = max(1, first[0] // middle[1])
            width = first[0] // groups
        kind = "cifar" if stem[-1] == 3 else "basic"
        return dict(zip(self.FLAG_KEYS, (depth, kind, stem[0], last[0], groups, width, False), strict=True))


def _depth_of(tensors: Tensors, is_bottleneck: bool) -> int:
    """The depth whose stages have as many blocks as the tensors."""
    stages = [{key.split(".")[1] for key in tensors if key.startswith(f"res{n}.")} for n in range(2, 6)]
    blocks = tuple(map(len, stages))
    for depth, counts in BLOCKS_PER_STAGE.items():
        if counts == blocks and (depth not in BASIC_DEPTHS) == is_bottleneck:
            return depth
    raise UserError(f"no ResNet has {blocks} blocks per stage: expected one of depth {list(BLOCKS_PER_STAGE)}")


def _shape_of(tensors: Tensors, name: str) -> tuple[int, ...]:
    """The shape of a convolution's weight."""
    tensor = tensors.get(f"{name}.weight")
    expect(
        tensor is not None and tensor.dim() == 4 and all(tensor.shape),
        f"the checkpoint has no convolution {name}.weight",
    )
    return tuple(tensor.shape)
