"""NanoDet-g's backbone and pyramid, for detectors of Detectron2; and its weights, which a detector of COCO learned.

After RangiLyu's NanoDet, config nanodet-g (Apache-2.0). A family of backbones outside of the tree: IMPORTS names it.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from revisit.checkpoint.flags import IMAGENET
from revisit.checkpoint.reading import tensors_of
from revisit.checkpoint.source_layout import SOURCE_LAYOUT_REGISTRY, FoundBackbone, SourceLayout, contents_of
from revisit.errors import expect
from revisit.keys import COUNT, declare
from revisit.modeling.backbone.description import BACKBONE_DESCRIPTIONS, BackboneDescription, Flags, Tensors

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, Backbone

WIDTH = "MODEL.NANODET.WIDTH"
declare(WIDTH, 32, "Channels of NanoDet-g's stem; its pyramid has four times as many.", COUNT)

SLOPE = 0.1  # of the activations below 0
BLOCKS = {
    2: (1, 1, 1),
    3: (2, 2, 2),
    4: (4, 2, 2),
    5: (8, 3, 2),
}  # by stage: channels in WIDTH, residual blocks, stride
PARTS = ("backbone.", "fpn.", "head.")  # how names of NanoDet's tensors begin
NORM, EPSILON = ("weight", "bias", "running_mean", "running_var"), 1e-5  # of its batch norm
MAPS = {"p3": 8, "p4": 16, "p5": 32}  # of the stages 3 to 5: strides, px


class Conv(nn.Module):
    """A convolution that keeps the size, but for its stride, and a leaky ReLU: (N, ``inputs``, H, W) ->
    (N, ``outputs``, H/stride, W/stride), rounded up."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        nn.init.kaiming_normal_(self.conv.weight, SLOPE, "fan_out")
        nn.init.zeros_(self.conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.conv(x), SLOPE)


class Halves(nn.Module):
    """(N, C, H, W) -> the same: half of the channels once convolved, after the same half convolved twice."""

    def __init__(self, channels: int):
        super().__init__()
        self.in_conv = Conv(channels, channels // 2)
        self.mid_conv = Conv(channels // 2, channels // 2)

    def forward(self, x: Tensor) -> Tensor:
        once = self.in_conv(x)
        return torch.cat([self.mid_conv(once), once], dim=1)


class CspBlock(nn.Module):
    """(N, C, H, W) -> (N, 2C, H/stride, W/stride): what the blocks make of the input, and the input, convolved."""

    def __init__(self, channels: int, blocks: int, stride: int):
        super().__init__()
        self.in_conv = Conv(channels, channels, stride)
        self.res_blocks = nn.Sequential(*(Halves(channels) for _ in range(blocks)))
        self.res_out_conv = Conv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.in_conv(x)
        return torch.cat([self.res_out_conv(self.res_blocks(x)), x], dim=1)


class Lateral(nn.Module):
    """A 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 1)
        nn.init.xavier_uniform_(self.conv.weight)
        nn.init.zeros_(self.conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Pyramid(nn.Module):
    """Maps of rising strides become maps of ``outputs`` channels: each gets what is above it, then what is below."""

    def __init__(self, inputs: list[int], outputs: int):
        super().__init__()
        self.lateral_convs = nn.ModuleList(Lateral(channels, outputs) for channels in inputs)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        maps = [lateral(each) for lateral, each in zip(self.lateral_convs, maps, strict=True)]
        for below in reversed(range(len(maps) - 1)):
            maps[below] = maps[below] + _resized(maps[below + 1], maps[below])
        for above in range(1, len(maps)):
            maps[above] = maps[above] + _resized(maps[above - 1], maps[above])
        return maps


def _resized(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, like.shape[-2:], mode="bilinear")


class NanoDetBackbone(Backbone):
    """Plain convolutions and a pyramid: (N, C, H, W) -> ``p3``, ``p4``, ``p5``, (N, 4 * width, H/stride, W/stride).

    ``channels`` are those of the images. Sides of images are multiples of 32 px, the ``size_divisibility``. The
    convolutions have biases and no norm: NanoDet's batch norm is folded into them.
    """

    def __init__(self, width: int, channels: int = 3):
        super().__init__()
        blocks = {stage: (width * wide, *rest) for stage, (wide, *rest) in BLOCKS.items()}
        pool = nn.MaxPool2d(3, 2, padding=1)
        self.stages = nn.ModuleList([Conv(channels, width, 2), pool, *(CspBlock(*each) for each in blocks.values())])
        self.fpn = Pyramid([2 * blocks[stage][0] for stage in (3, 4, 5)], 4 * width)
        self._out_features = list(MAPS)
        self._out_feature_channels = dict.fromkeys(MAPS, 4 * width)
        self._out_feature_strides = MAPS

    @property
    def size_divisibility(self) -> int:
        return max(MAPS.values())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = []
        for stage in self.stages:
            maps.append(x := stage(x))
        return dict(zip(MAPS, self.fpn(maps[3:]), strict=True))


@BACKBONE_REGISTRY.register()
def build_nanodet_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> NanoDetBackbone:
    """Of MODEL.NANODET.WIDTH."""
    return NanoDetBackbone(cfg.MODEL.NANODET.WIDTH, input_shape.channels)


@BACKBONE_DESCRIPTIONS.register()
class NanoDetDescription(BackboneDescription):
    NAME, NETWORK, BUILDER = "NanoDet-g", NanoDetBackbone, "build_nanodet_backbone"
    FLAG_KEYS = (WIDTH,)
    PREFIXES = ("stages.", "fpn.lateral_convs.")

    def build(self, cfg: CfgNode) -> NanoDetBackbone:
        return NanoDetBackbone(cfg.MODEL.NANODET.WIDTH, len(cfg.MODEL.PIXEL_MEAN))

    def flags_of_tensors(self, tensors: Tensors, stated: Flags) -> Flags:
        return {WIDTH: len(tensors["stages.0.conv.weight"])}


@SOURCE_LAYOUT_REGISTRY.register()
class NanoDetLayout(SourceLayout):
    """NanoDet's checkpoints: ``backbone.stages.``, ``fpn.`` and ``head.``, below ``model.`` where its trainer saved."""

    NAME = "nanodet"
    LICENCE = "Apache-2.0"
    EXPECTED = "the tensors backbone.stages. and fpn.lateral_convs. of NanoDet-g"

    def recognises(self, checkpoint: dict, stated: Flags) -> bool:
        return f"{PARTS[0]}stages.0.conv.weight" in published_tensors(checkpoint)

    def find_backbone(self, checkpoint: dict, stated: Flags) -> FoundBackbone:
        expect(self.recognises(checkpoint, stated), f"{contents_of(checkpoint)}: expected {self.EXPECTED}")
        tensors = published_tensors(checkpoint)
        backbone = {key.removeprefix(PARTS[0]): tensors[key] for key in tensors if key.startswith(PARTS[:2])}
        description = NanoDetDescription()
        turned = {key: IMAGENET[key][::-1] for key in ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD")}
        flags = {**turned, "INPUT.FORMAT": "BGR", **description.flags_of_tensors(backbone, {})}
        return FoundBackbone(backbone, description, flags, ("batch norm is folded into the convolutions",))


def published_tensors(checkpoint: dict) -> Tensors:
    """A NanoDet-g's tensors under NanoDet's names. The convolutions have taken in the batch norm that followed them."""
    named = {key.removeprefix("model."): value for key, value in tensors_of(checkpoint).items()}
    tensors = {key: value for key, value in named.items() if key.startswith(PARTS)}
    for key in [key for key in tensors if key.endswith(".bn.weight")]:
        layer = key.removesuffix(".bn.weight")
        conv = f"{layer}.conv.weight"
        needed = (conv, *(f"{layer}.bn.{name}" for name in NORM))
        lacking = [name for name in needed if name not in tensors]
        expect(not lacking, f"{', '.join(lacking)} is missing: expected a whole NanoDet-g")
        gamma, beta, mean, variance = (tensors[name].double() for name in needed[1:])
        scale = gamma / (variance + EPSILON).sqrt()
        tensors[conv] = (tensors[conv] * scale.view(-1, 1, 1, 1)).float()
        tensors[f"{layer}.conv.bias"] = (beta - mean * scale).float()
    return {key: value for key, value in tensors.items() if ".bn." not in key}
