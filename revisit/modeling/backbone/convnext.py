"""ConvNeXt (Liu et al., A ConvNet for the 2020s, CVPR 2022), which is timm's, as a Detectron2 backbone."""

from collections.abc import Sequence

from torch import Tensor, nn

from revisit.errors import UserError, expect
from revisit.keys import COUNT, declare, each, one_of
from revisit.modeling.backbone.description import BACKBONE_DESCRIPTIONS, Flags, Tensors
from revisit.modeling.backbone.pyramids import STAGES, fpn_maps, fpn_over
from revisit.modeling.backbone.timm_network import TimmDescription, freeze, timm_module

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, FPN, Backbone

_STRIDE = 32  # px, of the last map
_NAMES = {((3, 3, 9, 3), 96): "T", ((3, 3, 27, 3), 96): "S", ((3, 3, 27, 3), 128): "B", ((3, 3, 27, 3), 192): "L"}


declare("MODEL.CONVNEXT.DEPTHS", (3, 3, 9, 3), "Blocks of each stage.", each(COUNT, 4))
declare("MODEL.CONVNEXT.DIMS", (96, 192, 384, 768), "Channels of each stage.", each(COUNT, 4))
declare(
    "MODEL.CONVNEXT.OUT_FEATURES",
    ["res5"],
    "res2 to res5, called as a ResNet's of the same strides; stages after the last of them are not built.",
    each(one_of(*STAGES), least=1),
)


class ConvNeXtBackbone(Backbone):
    """timm's ConvNeXt without its head: (N, 3, H, W) -> by name, the maps of its stages, (N, C, H/s, W/s) rounded down.

    They are those of timm's ``forward_intermediates``: no norm follows a stage. ``freeze_at`` stages, of the stem and
    the four, take no gradient.

    Raises:
        UserError: timm is not installed; in ``forward``, images smaller than the stride.
    """

    def __init__(self, depths: Sequence[int], dims: Sequence[int], out_features: Sequence[str], freeze_at: int = 0):
        super().__init__()
        self._out_features = [name for name in STAGES if name in out_features]
        self._out_feature_channels = dict(zip(STAGES, dims, strict=True))
        self._out_feature_strides = {name: 4 * 2**n for n, name in enumerate(STAGES)}
        self._indices = [STAGES.index(name) for name in self._out_features]
        self.convnext = timm_module("models").ConvNeXt(depths=tuple(depths), dims=tuple(dims), num_classes=0)
        self.convnext.head = nn.Identity()
        self.convnext.stages = self.convnext.stages[: self._indices[-1] + 1]
        freeze(self.convnext, [["stem."], *([f"stages.{n}."] for n in range(4))], freeze_at)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        height, width = x.shape[-2:]
        expect(
            min(height, width) >= _STRIDE,
            f"an image of {height} x {width} px: a ConvNeXt needs {_STRIDE} px on each side; expected larger VIEWS, or "
            "larger images",
        )
        maps = self.convnext.forward_intermediates(x, indices=self._indices, intermediates_only=True)
        return dict(zip(self._out_features, maps, strict=True))


@BACKBONE_REGISTRY.register()
def build_convnext_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> ConvNeXtBackbone:
    """Build it from MODEL.CONVNEXT and MODEL.BACKBONE.FREEZE_AT."""
    options = cfg.MODEL.CONVNEXT
    return ConvNeXtBackbone(options.DEPTHS, options.DIMS, options.OUT_FEATURES, cfg.MODEL.BACKBONE.FREEZE_AT)


@BACKBONE_REGISTRY.register()
def build_convnext_fpn_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> FPN:
    """``fpn_over`` it."""
    return fpn_over(build_convnext_backbone(cfg, input_shape), cfg)


@BACKBONE_DESCRIPTIONS.register()
class ConvNeXtDescription(TimmDescription):
    """Of timm's ConvNeXts of the first kind, whose MLPs are linear layers. The norm of timm's head is no part of it."""

    NAME = "ConvNeXt"
    FLAG_KEYS = ("MODEL.CONVNEXT.DEPTHS", "MODEL.CONVNEXT.DIMS")
    PREFIXES = ("convnext.",)
    LIBRARY_MARK = "stages.0.blocks.0.conv_dw."
    FIRST = "convnext.stem.0.weight"
    BUILDERS = ("build_convnext_backbone", "build_convnext_fpn_backbone")
    FEATURES_KEY = "MODEL.CONVNEXT.OUT_FEATURES"
    SNIPPETS = {
        "timm": """\
In timm, where the norm of the untrained head is all that may be missing:

```python
import timm
import torch
{import_more}
model = timm.models.ConvNeXt(depths={depths}, dims={dims}, num_classes=0)
keys = model.load_state_dict({load}, strict=False)
assert keys.missing_keys == ["head.norm.weight", "head.norm.bias"] and not keys.unexpected_keys
mean, std = torch.tensor({mean_list}).view(3, 1, 1), torch.tensor({std_list}).view(3, 1, 1)
features = model.eval().forward_features((torch.rand(1, 3, 224, 224) - mean) / std).mean((2, 3))
assert features.shape == (1, {features})
```
""",
    }

    def matches(self, module: nn.Module) -> bool:
        return isinstance(module, ConvNeXtBackbone)

    def build(self, cfg: CfgNode) -> ConvNeXtBackbone:
        return ConvNeXtBackbone(cfg.MODEL.CONVNEXT.DEPTHS, cfg.MODEL.CONVNEXT.DIMS, STAGES)

    def maps(self, cfg: CfgNode) -> list[str]:
        return fpn_maps(cfg) if cfg.MODEL.BACKBONE.NAME == self.BUILDERS[1] else super().maps(cfg)

    def title(self, flags: Flags) -> str:
        depths, dims = (tuple(flags[key]) for key in self.FLAG_KEYS)
        letter = _NAMES.get((depths, dims[0])) if dims == tuple(dims[0] * 2**n for n in range(4)) else None
        return f"ConvNeXt-{letter}" if letter else f"ConvNeXt of depths {depths} and widths {dims}"

    def flags_of_tensors(self, tensors: Tensors) -> Flags:
        depths, dims = [], []
        for stage in range(4):
            found = [value for key, value in tensors.items() if _is_depthwise(key, stage)]
            if not found or found[0].dim() != 4:
                raise UserError(f"the checkpoint has no convolution in stage {stage} of a ConvNeXt: expected 4 stages")
            depths.append(len(found))
            dims.append(len(found[0]))
        return dict(zip(self.FLAG_KEYS, (depths, dims), strict=True))

    def card(self, flags: Flags) -> dict[str, object]:
        depths, dims = (tuple(flags[key]) for key in self.FLAG_KEYS)
        return {
            "depths": depths,
            "dims": dims,
            "features": dims[-1],
            "network": f"{self.title(flags)}, without a norm after its last stage",
            "output": f"no head\n(`head.norm`, `head.fc`). An image becomes {dims[-1]} numbers, the mean of the last "
            f"map, whose stride is {_STRIDE}.",
        }


def _is_depthwise(key: str, stage: int) -> bool:
    return key.startswith(f"convnext.stages.{stage}.blocks.") and key.endswith(".conv_dw.weight")
