"""A family of backbones outside of the tree: its builder, its config key and its description."""

from torch import Tensor, nn

from revisit.keys import declare
from revisit.modeling.backbone.description import BACKBONE_DESCRIPTIONS, BackboneDescription, Card, Flags, Tensors

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, Backbone

declare("MODEL.CONV_NET.WIDTH", 8, "Channels.")


class ConvNet(Backbone):
    """Two convolutions of stride 2 with BN: (N, C, H, W) -> ``last``, (N, WIDTH, H/4, W/4)."""

    def __init__(self, width: int, channels: int = 3):
        super().__init__()
        convs = [nn.Conv2d(inputs, width, 3, stride=2, padding=1) for inputs in (channels, width)]
        self.layers = nn.Sequential(convs[0], nn.BatchNorm2d(width), convs[1], nn.BatchNorm2d(width))
        self._out_features = ["last"]
        self._out_feature_channels, self._out_feature_strides = {"last": width}, {"last": 4}

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"last": self.layers(x)}


@BACKBONE_REGISTRY.register()
def build_conv_net(cfg: CfgNode, input_shape: ShapeSpec) -> ConvNet:
    return ConvNet(cfg.MODEL.CONV_NET.WIDTH, len(cfg.MODEL.PIXEL_MEAN))


@BACKBONE_DESCRIPTIONS.register()
class ConvNetDescription(BackboneDescription):
    NAME, NETWORK = "ConvNet", ConvNet
    FLAG_KEYS = ("MODEL.CONV_NET.WIDTH",)
    PREFIXES = ("layers.",)

    def build(self, cfg: CfgNode) -> ConvNet:
        return ConvNet(cfg.MODEL.CONV_NET.WIDTH, len(cfg.MODEL.PIXEL_MEAN))

    def library_names(self, stated: Flags) -> dict[str, str]:
        return {f"body.{key}": f"layers.{key}" for key in ConvNet(1).layers.state_dict()}

    def flags_of_tensors(self, tensors: Tensors, stated: Flags) -> Flags:
        return {"MODEL.CONV_NET.WIDTH": len(tensors["layers.0.weight"])}

    def card(self, flags: Flags) -> Card:
        facts = {"width": flags["MODEL.CONV_NET.WIDTH"]}
        return Card("two convolutions", "no classifier.", facts, {"timm": "A net of {width} channels by `{load}`.\n"})
