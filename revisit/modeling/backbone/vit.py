"""ViT (Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021), which is timm's, as a Detectron2 backbone."""

import math

from torch import Tensor, nn

from revisit.errors import UserError, expect
from revisit.keys import COUNT, PIXELS, SWITCH, declare
from revisit.modeling.backbone.description import BACKBONE_DESCRIPTIONS, TIMM_SNIPPET, Flags, Tensors
from revisit.modeling.backbone.pyramids import SimpleFeaturePyramid, simple_pyramid_maps
from revisit.modeling.backbone.timm_network import TimmDescription, freeze, timm_module

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, Backbone

LAST = "last_feat"  # Detectron2's name of a ViT's map
_HEAD_DIM = 64  # channels of an attention head, in all of timm's ViT-Ti to ViT-L
_NAMES = {(192, 12): "Ti", (384, 12): "S", (768, 12): "B", (1024, 24): "L"}


declare("MODEL.VIT.PATCH_SIZE", 16, "px.", PIXELS)
declare("MODEL.VIT.EMBED_DIM", 384, "Channels.", COUNT)
declare("MODEL.VIT.DEPTH", 12, "Blocks.", COUNT)
declare("MODEL.VIT.NUM_HEADS", 6, "Attention heads.", COUNT)
declare(
    "MODEL.VIT.IMAGE_SIZE",
    224,
    "px: the square image that the position embedding has a row for each patch of; interpolated for another.",
    PIXELS,
)
# Without the class token as output, MoCo-v3 learnt far better features without it (arXiv 2104.02057).
declare("MODEL.VIT.FINAL_NORM", True, "Layer norm over the last block's tokens, as timm has it.", SWITCH)


class ViTBackbone(Backbone):
    """timm's VisionTransformer: (N, 3, H, W) -> ``last_feat``, the patches' tokens, (N, C, H/P, W/P) rounded up.

    The class token takes part and is left out of the map. As in timm with ``dynamic_img_size``, the position embedding
    is interpolated (bicubic, antialiased) for images of another size than IMAGE_SIZE; sides that do not divide by the
    patch are padded with zeros at the right and the bottom. Of the stages of MODEL.BACKBONE.FREEZE_AT the first is the
    patch embedding, the others are a quarter of the blocks each, and the last has all the rest with it.

    Raises:
        UserError: timm is not installed.
    """

    def __init__(self, options: CfgNode, freeze_at: int = 0):
        super().__init__()
        self.vit = timm_module("models").VisionTransformer(
            img_size=options.IMAGE_SIZE,
            patch_size=options.PATCH_SIZE,
            embed_dim=options.EMBED_DIM,
            depth=options.DEPTH,
            num_heads=options.NUM_HEADS,
            num_classes=0,
            dynamic_img_size=True,
            dynamic_img_pad=True,
        )
        if not options.FINAL_NORM:
            self.vit.norm = nn.Identity()
        self._out_features = [LAST]
        self._out_feature_channels, self._out_feature_strides = {LAST: options.EMBED_DIM}, {LAST: options.PATCH_SIZE}
        quarters = [range(options.DEPTH * n // 4, options.DEPTH * (n + 1) // 4) for n in range(3)]
        blocks = [[f"blocks.{n}." for n in quarter] for quarter in quarters]
        freeze(self.vit, [["patch_embed."], *blocks, [""]], freeze_at)

    @property
    def size_divisibility(self) -> int:
        return self._out_feature_strides[LAST]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {LAST: self.vit.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)[0]}


@BACKBONE_REGISTRY.register()
def build_vit_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> ViTBackbone:
    """Build it from MODEL.VIT and MODEL.BACKBONE.FREEZE_AT."""
    return ViTBackbone(cfg.MODEL.VIT, cfg.MODEL.BACKBONE.FREEZE_AT)


@BACKBONE_REGISTRY.register()
def build_vit_pyramid_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> SimpleFeaturePyramid:
    """A simple feature pyramid of MODEL.FPN.OUT_CHANNELS over it."""
    return SimpleFeaturePyramid(build_vit_backbone(cfg, input_shape), cfg.MODEL.FPN.OUT_CHANNELS)


@BACKBONE_DESCRIPTIONS.register()
class ViTDescription(TimmDescription):
    """Of timm's plain ViTs with a class token, whose position embedding has a row for it."""

    NAME = "ViT"
    FLAG_KEYS = (
        "MODEL.VIT.PATCH_SIZE",
        "MODEL.VIT.EMBED_DIM",
        "MODEL.VIT.DEPTH",
        "MODEL.VIT.NUM_HEADS",
        "MODEL.VIT.IMAGE_SIZE",
        "MODEL.VIT.FINAL_NORM",
    )
    PREFIXES = ("vit.",)
    LIBRARY_MARK = "blocks.0.attn."
    FIRST = "vit.patch_embed.proj.weight"
    BUILDERS = ("build_vit_backbone", "build_vit_pyramid_backbone")
    TRACEABLE = False  # it would keep the position embedding of the traced size
    MAY_STAY_RANDOM = 1  # the patch embedding, which is steadier so (MoCo-v3, arXiv 2104.02057, Section 4)
    SNIPPETS = {"timm": TIMM_SNIPPET}

    def matches(self, module: nn.Module) -> bool:
        return isinstance(module, ViTBackbone)

    def build(self, cfg: CfgNode) -> ViTBackbone:
        return ViTBackbone(cfg.MODEL.VIT)

    def maps(self, cfg: CfgNode) -> list[str]:
        return simple_pyramid_maps(cfg.MODEL.VIT.PATCH_SIZE) if cfg.MODEL.BACKBONE.NAME == self.BUILDERS[1] else [LAST]

    def check(self, cfg: CfgNode) -> None:
        super().check(cfg)
        options, patch = cfg.MODEL.VIT, cfg.MODEL.VIT.PATCH_SIZE
        for key, part in (("EMBED_DIM", "NUM_HEADS"), ("IMAGE_SIZE", "PATCH_SIZE")):
            expect(
                options[key] % options[part] == 0,
                f"MODEL.VIT.{key} is {options[key]}: expected a multiple of MODEL.VIT.{part}, {options[part]}",
            )
        expect(
            cfg.MODEL.BACKBONE.NAME != self.BUILDERS[1] or (patch >= 4 and patch.bit_count() == 1),
            f"MODEL.VIT.PATCH_SIZE is {patch}: a pyramid needs a power of two of at least 4",
        )

    def title(self, flags: Flags) -> str:
        patch, width, depth = (flags[key] for key in self.FLAG_KEYS[:3])
        letter = _NAMES.get((width, depth))
        return f"ViT-{letter}/{patch}" if letter else f"ViT of width {width}, depth {depth} and patches of {patch} px"

    def flags_of_tensors(self, tensors: Tensors) -> Flags:
        places, first = tensors.get("vit.pos_embed"), tensors.get(self.FIRST)
        if places is None or places.dim() != 3 or first is None or first.dim() != 4:
            raise UserError("the checkpoint has no pos_embed or no patch_embed.proj.weight of a plain ViT")
        width, patch = first.shape[0], first.shape[-1]
        side = math.isqrt(max(0, places.shape[1] - 1))
        expect(
            0 < side**2 == places.shape[1] - 1 and width % _HEAD_DIM == 0,
            f"no plain ViT has {places.shape[1]} rows of {width} channels in pos_embed: expected a square of patches "
            f"and one more for the class token, and heads of {_HEAD_DIM} channels",
        )
        depth = len({key.split(".")[2] for key in tensors if key.startswith("vit.blocks.")})
        found = (patch, width, depth, width // _HEAD_DIM, side * patch, "vit.norm.weight" in tensors)
        return dict(zip(self.FLAG_KEYS, found, strict=True))

    def card(self, flags: Flags) -> dict[str, object]:
        patch, width, depth, heads, image, norm = (flags[key] for key in self.FLAG_KEYS)
        last = "layer norm" if norm else "no layer norm"
        built = f"""timm.models.VisionTransformer(
    img_size={image}, patch_size={patch}, embed_dim={width}, depth={depth}, num_heads={heads}, num_classes=0,
    global_pool="avg", fc_norm=False, dynamic_img_size=True, dynamic_img_pad=True,
)"""
        return {
            "features": width,
            "timm_model": built if norm else f"{built}\nmodel.norm = torch.nn.Identity()",
            "network": f"{self.title(flags)} with a class token, {last} after its last block",
            "output": f"no head\n(`head`). An image becomes {width} numbers, the mean over its patches' tokens.",
        }
