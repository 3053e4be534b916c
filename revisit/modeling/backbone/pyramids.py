"""Pyramids of maps for detectors: Detectron2's FPN over several maps, ViTDet's simple one over a single map."""

from collections import OrderedDict

from torch import Tensor, nn

from revisit.modeling.backbone.timm_network import timm_module

from detectron2.config import CfgNode
from detectron2.modeling import FPN, Backbone
from detectron2.modeling.backbone.fpn import LastLevelMaxPool, LastLevelP6P7

STAGES = ("res2", "res3", "res4", "res5")  # maps of strides 4 to 32 that an FPN stands on, of any family


def fpn_over(bottom_up: Backbone, cfg: CfgNode) -> FPN:
    """Detectron2's FPN of MODEL.FPN over a backbone whose maps are called res2 to res5, some of them.

    Maps ``fpn_maps(cfg)`` of MODEL.FPN.OUT_CHANNELS: ``p6`` by pooling; for a RetinaNet ``p6`` and ``p7`` by
    convolutions of res5. All as Detectron2's builders for either make them.
    """
    options, top = cfg.MODEL.FPN, LastLevelMaxPool()
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


def fpn_maps(cfg: CfgNode) -> list[str]:
    """Names of the maps of ``fpn_over``: ``p2`` of res2 to ``p5`` of res5, and what lies above."""
    above = ["p6", "p7"] if cfg.MODEL.META_ARCHITECTURE == "RetinaNet" else ["p6"]
    return [*(f"p{name[3:]}" for name in cfg.MODEL.FPN.IN_FEATURES), *above]


class SimpleFeaturePyramid(Backbone):
    """The simple feature pyramid over the one map of a plain backbone (Li et al., Exploring Plain Vision Transformer
    Backbones for Object Detection, ECCV 2022, arXiv 2203.16527).

    The map, of stride s, is brought to the strides s/4, s/2, s and 2s: by two 2x2 deconvolutions with layer norm and
    GELU between them, by one, as it is, and by 2x2 max pooling. Each then passes a 1x1 and a 3x3 convolution with layer
    norm. A fifth map is every second place of the fourth.

    (N, 3, H, W) -> maps (N, ``out_channels``, H/stride, W/stride) by the names of ``simple_pyramid_maps(s)``. H and W
    have to divide by 2s, the ``size_divisibility``.
    """

    def __init__(self, bottom_up: Backbone, out_channels: int):
        super().__init__()
        self.bottom_up = bottom_up
        ((self._map, shape),) = bottom_up.output_shape().items()
        width, norm = shape.channels, timm_module("layers").LayerNorm2d
        half, quarter = width // 2, width // 4
        scales = OrderedDict()
        names = simple_pyramid_maps(shape.stride)
        twice = [_double(width, half), norm(half), nn.GELU(), _double(half, quarter)]
        parts = [(quarter, twice), (half, [_double(width, half)]), (width, []), (width, [nn.MaxPool2d(2)])]
        for name, (channels, resize) in zip(names, parts, strict=False):  # the last is made of the one below it
            convs = [nn.Conv2d(channels, out_channels, 1, bias=False), norm(out_channels)]
            convs += [nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False), norm(out_channels)]
            scales[name] = nn.Sequential(*resize, *convs)
        self.scales, self.top = nn.ModuleDict(scales), LastLevelMaxPool()
        self._out_features = names
        self._out_feature_channels = dict.fromkeys(names, out_channels)
        self._out_feature_strides = {name: 2 ** int(name[1:]) for name in names}

    @property
    def size_divisibility(self) -> int:
        return 2 * self.bottom_up.size_divisibility

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        below = self.bottom_up(x)[self._map]
        maps = {name: scale(below) for name, scale in self.scales.items()}
        return {**maps, self._out_features[-1]: self.top(list(maps.values())[-1])[0]}


def simple_pyramid_maps(stride: int) -> list[str]:
    """Names of its maps over one of ``stride``, a power of two: ``p2`` to ``p6`` over 16, after their strides' log2."""
    middle = stride.bit_length() - 1
    return [f"p{n}" for n in range(middle - 2, middle + 3)]


def _double(channels: int, out_channels: int) -> nn.ConvTranspose2d:
    """A deconvolution to twice the height and width."""
    return nn.ConvTranspose2d(channels, out_channels, 2, stride=2)
