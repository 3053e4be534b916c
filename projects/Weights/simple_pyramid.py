"""ViTDet's simple feature pyramid over the one map of a plain backbone."""

from collections import OrderedDict

from torch import Tensor, nn

from revisit.errors import UserError

from detectron2.modeling import Backbone
from detectron2.modeling.backbone.fpn import LastLevelMaxPool


class SimpleFeaturePyramid(Backbone):
    """The simple feature pyramid over the one map of a plain backbone (Li et al., Exploring Plain Vision Transformer
    Backbones for Object Detection, ECCV 2022, arXiv 2203.16527).

    The map, of stride s, is brought to the strides s/4, s/2, s and 2s: by two 2x2 deconvolutions with layer norm and
    GELU between them, by one, as it is, and by 2x2 max pooling. Each then passes a 1x1 and a 3x3 convolution with layer
    norm. A fifth map is every second place of the fourth.

    (N, 3, H, W) -> maps (N, ``out_channels``, H/stride, W/stride), named after the log2 of their strides: ``p2`` to
    ``p6`` over a map of stride 16. H and W have to divide by 2s, the ``size_divisibility``.
    """

    def __init__(self, bottom_up: Backbone, out_channels: int):
        from timm.layers import LayerNorm2d as norm  # only here: importing timm takes a second

        super().__init__()
        self.bottom_up = bottom_up
        ((self._map, shape),) = bottom_up.output_shape().items()
        level = shape.stride.bit_length() - 1
        if shape.stride != 2**level or level < 2:
            raise UserError(f"a map of stride {shape.stride}: a simple pyramid needs a power of two of at least 4")
        width = shape.channels
        half = width // 2
        quarter = width // 4
        resize = {
            f"p{level - 2}": [_double(width, half), norm(half), nn.GELU(), _double(half, quarter)],
            f"p{level - 1}": [_double(width, half)],
            f"p{level}": [],
            f"p{level + 1}": [nn.MaxPool2d(2)],
        }
        scales = OrderedDict()
        for (name, layers), channels in zip(resize.items(), (quarter, half, width, width), strict=True):
            convs = [nn.Conv2d(channels, out_channels, 1, bias=False), norm(out_channels)]
            convs += [nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False), norm(out_channels)]
            scales[name] = nn.Sequential(*layers, *convs)
        self.scales = nn.ModuleDict(scales)
        self.top = LastLevelMaxPool()
        names = [*scales, f"p{level + 2}"]
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


def _double(channels: int, out_channels: int) -> nn.ConvTranspose2d:
    """A deconvolution to twice the height and width."""
    return nn.ConvTranspose2d(channels, out_channels, 2, stride=2)
