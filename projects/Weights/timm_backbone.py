"""All of timm's networks as Detectron2 backbones, by their names: built, padded and frozen as timm does.

timm builds and interpolates position embeddings; nothing here knows one of its families.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from projects.Weights.depthwise import fast_depthwise
from projects.Weights.simple_pyramid import SimpleFeaturePyramid
from projects.Weights.timm_networks import Form, build, form_of, hashable, maps_of
from revisit.errors import UserError
from revisit.keys import SWITCH, Rule, declare
from revisit.modeling.backbone.fpn import fpn_over

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, FPN, Backbone

declare(
    "MODEL.TIMM.NAME",
    "",
    "timm's name of the network, such as `convnext_tiny`, for the backbones `build_timm_*`.",
    Rule("a name of timm's without a tag of weights after a dot", lambda v: isinstance(v, str) and "." not in v),
)
declare(
    "MODEL.TIMM.OPTIONS",
    [],
    "Arguments of `timm.create_model` that say which network it is, each after its name, such as `['img_size', 64, "
    "'patch_size', 8]`.",
)
declare(
    "MODEL.TIMM.FINAL_NORM",
    False,
    "Whether a ViT's maps pass its last norm, with which weights such as DINO's are released. MoCo-v3 learned better "
    "features without it if the class token is not the output (arXiv 2104.02057).",
    SWITCH,
)
declare(
    "MODEL.TIMM.OUT_FEATURES", [], "Maps by their strides: `res2` is of stride 4, `res5` of 32; `[]`: the last one."
)


class TimmBackbone(Backbone):
    """A network of timm's without its head: (N, n, H, W) -> by name, maps (N, C, H/stride, W/stride), rounded up.

    Maps are those of timm's ``forward_intermediates``. Where the network does not round up by itself, images are padded
    with zeros at the right and the bottom. Layers after the last of the maps are not built. The keys MODEL.TIMM.* say
    what the arguments mean; ``freeze_at`` stages or blocks of timm's, the stem first, keep weights and statistics.

    Raises UserError where timm cannot build the network, or its maps have no fixed strides over images of any size.
    """

    def __init__(
        self,
        name: str,
        options: list = (),
        *,
        final_norm: bool = False,
        out_features: list = (),
        freeze_at: int = 0,
        channels: int = 3,
    ):
        super().__init__()
        form = form_of(name, hashable(options), final_norm)
        _require_maps(name, form, out_features)
        last = list(form.stages)[-1]
        names = [stage for stage in form.stages if stage in out_features] or [last]
        self._out_features = names
        self._out_feature_channels = {stage: form.stages[stage].channels for stage in names}
        self._out_feature_strides = {stage: form.stages[stage].stride for stage in names}
        self._name = name
        self._multiple = form.multiple
        self._final_norm = final_norm
        self._indices = [form.stages[stage].index for stage in names]
        self.timm = build(name, form.kwargs, self._indices, final_norm, channels)
        fast_depthwise(self.timm)
        _freeze(self.timm, freeze_at)

    @property
    def size_divisibility(self) -> int:
        return max(self._out_feature_strides.values())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        height, width = (-side % self._multiple for side in x.shape[-2:])
        x = F.pad(x, (0, width, 0, height)) if height or width else x
        try:
            maps = maps_of(self.timm, x, self._indices, self._final_norm)
        except IndexError as error:  # MViTv2's tables of positions are of one size, which its shapes do not show
            size = f"{x.shape[-1]}x{x.shape[-2]} px"
            way_out = "expected smaller images, or another network"
            raise UserError(f"{self._name} of timm's has no positions for images of {size}: {way_out}") from error
        return dict(zip(self._out_features, maps, strict=True))


def _require_maps(name: str, form: Form, out_features: list[str]) -> None:
    """Raise UserError for the name of a map that the network does not have."""
    if unknown := set(out_features) - set(form.stages):
        plain = "; a pyramid over its one map is build_timm_simple_pyramid_backbone" if len(form.stages) == 1 else ""
        stages = ", ".join(form.stages)
        raise UserError(f"timm's {name} has no map {sorted(unknown)}: expected some of {stages}{plain}")


def _freeze(network: nn.Module, freeze_at: int) -> None:
    """Freeze the first groups of timm's ``group_matcher``, in whose terms its layer decay is stated, and their BN.

    Tokens and position embeddings, which are no module's but the network's own, belong to the last group.
    """
    if not freeze_at:
        return
    import timm

    groups = timm.models.group_parameters(network, network.group_matcher(coarse=True))
    for names in list(groups.values())[:freeze_at]:
        modules = sorted({name.rpartition(".")[0] for name in names} - {""})
        if modules:
            timm.utils.freeze(network, modules)
    if freeze_at >= len(groups):
        network.requires_grad_(False)


def _from(cfg: CfgNode, input_shape: ShapeSpec, out_features: list[str] = ()) -> TimmBackbone:
    options = cfg.MODEL.TIMM
    return TimmBackbone(
        options.NAME,
        options.OPTIONS,
        final_norm=options.FINAL_NORM,
        out_features=out_features,
        freeze_at=cfg.MODEL.BACKBONE.FREEZE_AT,
        channels=input_shape.channels,
    )


@BACKBONE_REGISTRY.register()
def build_timm_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> TimmBackbone:
    """Build it from MODEL.TIMM and MODEL.BACKBONE.FREEZE_AT."""
    return _from(cfg, input_shape, cfg.MODEL.TIMM.OUT_FEATURES)


@BACKBONE_REGISTRY.register()
def build_timm_fpn_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> FPN:
    """``fpn_over`` its maps of MODEL.FPN.IN_FEATURES."""
    return fpn_over(_from(cfg, input_shape, cfg.MODEL.FPN.IN_FEATURES), cfg)


@BACKBONE_REGISTRY.register()
def build_timm_simple_pyramid_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> SimpleFeaturePyramid:
    """A simple feature pyramid of MODEL.FPN.OUT_CHANNELS over its last map."""
    return SimpleFeaturePyramid(_from(cfg, input_shape), cfg.MODEL.FPN.OUT_CHANNELS)
