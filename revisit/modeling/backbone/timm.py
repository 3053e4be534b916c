"""All of timm's networks as Detectron2 backbones, by their names: built, frozen, converted and exported as timm does.

timm builds, interpolates position embeddings and names tensors; nothing here knows one of its families.
"""

import ast
import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from revisit.errors import UserError, did_you_mean, expect, first_line
from revisit.keys import SWITCH, Rule, declare
from revisit.modeling.backbone.description import BACKBONE_DESCRIPTIONS, BackboneDescription, Card, Flags, Tensors
from revisit.modeling.backbone.pyramids import SimpleFeaturePyramid, fpn_over

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
    "Whether a ViT's maps pass its last norm, with which weights such as DINO's are released. MoCo-v3 learnt better "
    "features without it where the class token is not the output (arXiv 2104.02057).",
    SWITCH,
)
declare(
    "MODEL.TIMM.OUT_FEATURES", [], "Maps by their strides: `res2` is of stride 4, `res5` of 32; `[]`: the last one."
)

# What an option may be. Files state options too, and others of create_model's arguments name files to load and places
# to fetch weights from.
_ARCHITECTURE = """
act_layer attn_drop_rate avg_down base_width cardinality channels class_token conv_bias conv_mlp depth depths dims
drop_path_rate drop_rate dynamic_img_pad dynamic_img_size embed_dim embed_dims expand_ratio fc_norm final_norm
global_pool head_dim img_size init_values kernel_size kernel_sizes layer_scale_init_value layers ls_init_value
mlp_layer mlp_ratio mlp_ratios no_embed_class norm_eps norm_layer num_classes num_features num_heads num_kv_heads
num_reg_tokens output_stride pad_type patch_drop_rate patch_size pos_drop_rate pos_embed pre_norm proj_bias
proj_drop_rate qk_norm qkv_bias ref_feat_shape reg_tokens rope_temperature rope_type stem_size stem_type stem_width
strict_img_size swiglu_mlp use_abs_pos_emb use_fc_norm use_grn use_post_norm use_rel_pos_bias use_rot_pos_emb
use_shared_rel_pos_bias widths window_ratio window_size
"""
# How timm is asked for a network that takes images of any size; the first that it builds and that does so is taken.
_ANY_SIZE = (
    {"dynamic_img_size": True, "dynamic_img_pad": True},
    {"dynamic_img_size": True},
    {"strict_img_size": False},
    {},
)


class Stage(NamedTuple):
    """One of the maps that a network can return."""

    index: int  # among those of timm's ``forward_intermediates``
    channels: int
    stride: int  # px


class Form(NamedTuple):
    """What a network is like, tried without values."""

    kwargs: dict[str, object]  # of timm.create_model
    stages: dict[str, Stage]  # by name, in the network's order; of several maps of one stride the last
    multiple: int  # px: sides have to be padded to a multiple of it; 1 where the network itself rounds up
    heads: list[int]  # of its attention, rising; no tensor shows them


class TimmBackbone(Backbone):
    """A network of timm's without its head: (N, 3, H, W) -> by name, maps (N, C, H/stride, W/stride), rounded up.

    Maps are those of timm's ``forward_intermediates``. Where the network does not round up by itself, images are padded
    with zeros at the right and the bottom. Layers after the last of the maps are not built. The keys MODEL.TIMM.* say
    what the arguments mean; ``freeze_at`` stages or blocks of timm's, the stem first, keep weights and statistics.

    Raises UserError where timm cannot build the network, or its maps have no fixed strides over images of any size.
    """

    def __init__(
        self, name: str, options: list = (), *, final_norm: bool = False, out_features: list = (), freeze_at: int = 0
    ):
        super().__init__()
        form = _form(name, _hashable(options), final_norm)
        self._out_features = [stage for stage in form.stages if stage in out_features] or [list(form.stages)[-1]]
        if unknown := set(out_features) - set(form.stages):
            plain = (
                "; a pyramid over its one map is build_timm_simple_pyramid_backbone" if len(form.stages) == 1 else ""
            )
            stages = ", ".join(form.stages)
            raise UserError(f"timm's {name} has no map {sorted(unknown)}: expected some of {stages}{plain}")
        stages = {stage: form.stages[stage] for stage in self._out_features}
        self._out_feature_channels = {stage: shape.channels for stage, shape in stages.items()}
        self._out_feature_strides = {stage: shape.stride for stage, shape in stages.items()}
        self._name, self._multiple, self._final_norm = name, form.multiple, final_norm
        self._indices = [shape.index for shape in stages.values()]
        self.timm = _build(name, form.kwargs, self._indices, final_norm)
        _freeze(self.timm, freeze_at)

    @property
    def size_divisibility(self) -> int:
        return max(self._out_feature_strides.values())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        height, width = (-side % self._multiple for side in x.shape[-2:])
        x = F.pad(x, (0, width, 0, height)) if height or width else x
        try:
            maps = _maps(self.timm, x, self._indices, self._final_norm)
        except IndexError as error:  # MViTv2's tables of positions are of one size, which its shapes do not show
            size = f"{x.shape[-1]}x{x.shape[-2]} px"
            way_out = "expected smaller images, or another network"
            raise UserError(f"{self._name} of timm's has no positions for images of {size}: {way_out}") from error
        return dict(zip(self._out_features, maps, strict=True))


def _hashable(options: object) -> object:
    return tuple(map(_hashable, options)) if isinstance(options, list | tuple) else options


def _whole(name: str, kwargs: dict[str, object]) -> nn.Module:
    import timm  # only where one of its networks is used: it takes a second

    # Before create_model, which takes the address of a file or of a repository on the network too.
    meant = "" if timm.is_model(name) else did_you_mean(name, timm.list_models())
    has_no = f"MODEL.TIMM.NAME {name!r}: timm has no such network; expected one of its list_models(){meant}"
    expect(timm.is_model(name), has_no)
    return timm.create_model(name, pretrained=False, **kwargs)


def _build(name: str, kwargs: dict[str, object], indices: list[int], final_norm: bool) -> nn.Module:
    network = _whole(name, kwargs)
    network.prune_intermediate_layers(indices, prune_norm=not final_norm)
    return network


def _maps(network: nn.Module, x: Tensor, indices: list[int], final_norm: bool) -> list[Tensor]:
    options = {"norm": final_norm, "output_fmt": "NCHW", "intermediates_only": True}
    return network.forward_intermediates(x, indices=indices, **options)


@cache
def _form(name: str, options: tuple[object, ...], final_norm: bool) -> Form:
    """Try a network on the meta device, with images of two sizes. Raises UserError where it is no backbone."""
    if len(options) % 2:
        raise UserError(f"MODEL.TIMM.OPTIONS {list(options)}: expected each value after its name")
    stated = dict(zip(options[::2], options[1::2], strict=True))
    arguments = _ARCHITECTURE.split()
    for option in map(str, stated):
        meant = did_you_mean(option, arguments, most=3)
        expect(option in arguments, f"MODEL.TIMM.OPTIONS: {option} is no argument of an architecture{meant}")
    for kwargs in _ANY_SIZE:
        try:
            with torch.device("meta"), torch.no_grad():
                return _tried(name, kwargs | stated, final_norm)
        except UserError:
            raise
        except Exception as error:  # timm's or the network's own, of any kind
            reason = first_line(error)
    raise UserError(f"MODEL.TIMM.NAME {name!r} is no network for images of any size in timm: {reason}")


def _tried(name: str, kwargs: dict[str, object], final_norm: bool) -> Form:
    network = _whole(name, kwargs).eval()
    by_stride = {info["reduction"]: (index, info["num_chs"]) for index, info in enumerate(network.feature_info)}
    stages = {f"res{round(math.log2(s))}": Stage(index, width, s) for s, (index, width) in by_stride.items()}
    largest, indices = max(by_stride), [stage.index for stage in stages.values()]

    def fits(height: int, width: int) -> bool:
        maps = _maps(network, torch.zeros(1, 3, height, width), indices, final_norm)
        sides = [(s.channels, math.ceil(height / s.stride), math.ceil(width / s.stride)) for s in stages.values()]
        return [tuple(one.shape[1:]) for one in maps] == sides

    if not fits(3 * largest, 4 * largest):
        raise ValueError(f"its maps do not have the strides {list(by_stride)} and the channels that it states")
    try:
        rounds_up = fits(2 * largest + 1, 4 * largest - 3)
    except Exception:
        rounds_up = False
    heads = sorted({module.num_heads for module in network.modules() if hasattr(module, "num_heads")})
    return Form(kwargs, stages, 1 if rounds_up else largest, heads)


@cache
def _tensors_of(name: str, options: tuple[object, ...], final_norm: bool | None) -> frozenset[str]:
    """State-dict keys of a network down to its last map, with or without its final norm; None: of all of it."""
    form = _form(name, options, bool(final_norm))
    with torch.device("meta"):
        last = [max(form.stages.values()).index]
        network = _whole(name, form.kwargs) if final_norm is None else _build(name, form.kwargs, last, final_norm)
        return frozenset(network.state_dict())


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


def _from(cfg: CfgNode, out_features: list[str] = ()) -> TimmBackbone:
    options, freeze_at = cfg.MODEL.TIMM, cfg.MODEL.BACKBONE.FREEZE_AT
    form = {"final_norm": options.FINAL_NORM, "out_features": out_features, "freeze_at": freeze_at}
    return TimmBackbone(options.NAME, options.OPTIONS, **form)


@BACKBONE_REGISTRY.register()
def build_timm_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> TimmBackbone:
    """Build it from MODEL.TIMM and MODEL.BACKBONE.FREEZE_AT."""
    return _from(cfg, cfg.MODEL.TIMM.OUT_FEATURES)


@BACKBONE_REGISTRY.register()
def build_timm_fpn_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> FPN:
    """``fpn_over`` its maps of MODEL.FPN.IN_FEATURES."""
    return fpn_over(_from(cfg, cfg.MODEL.FPN.IN_FEATURES), cfg)


@BACKBONE_REGISTRY.register()
def build_timm_simple_pyramid_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> SimpleFeaturePyramid:
    """A simple feature pyramid of MODEL.FPN.OUT_CHANNELS over its last map."""
    return SimpleFeaturePyramid(_from(cfg), cfg.MODEL.FPN.OUT_CHANNELS)


_SNIPPET = """\
In timm:

```python
import timm
import torch
{import_more}
model = timm.create_model({timm_name!r}, **{kwargs})
index = model.prune_intermediate_layers([{index}], prune_norm={prune_norm})
model.load_state_dict({load})
mean, std = torch.tensor({mean_list}).view(3, 1, 1), torch.tensor({std_list}).view(3, 1, 1)
images = (torch.rand(1, 3, 224, 224) - mean) / std
options = {{"norm": {norm}, "output_fmt": "NCHW", "intermediates_only": True}}
features = model.eval().forward_intermediates(images, indices=index, **options)[-1].mean((2, 3))
assert features.shape == (1, {features})
```
"""


@BACKBONE_DESCRIPTIONS.register()
class TimmDescription(BackboneDescription):
    """Of timm's networks. Their tensors have timm's names after one prefix; which network it is, its name says."""

    NAME, NETWORK = "network of timm's", TimmBackbone
    FLAG_KEYS = ("MODEL.TIMM.NAME", "MODEL.TIMM.OPTIONS", "MODEL.TIMM.FINAL_NORM")
    PREFIXES = ("timm.",)

    def build(self, cfg: CfgNode) -> TimmBackbone:
        return TimmBackbone(cfg.MODEL.TIMM.NAME, cfg.MODEL.TIMM.OPTIONS, final_norm=cfg.MODEL.TIMM.FINAL_NORM)

    def title(self, flags: Flags) -> str:
        name, options, final_norm = (flags[key] for key in self.FLAG_KEYS)
        heads = ", ".join(map(str, _form(name, _hashable(options), final_norm).heads))
        return f"{name} of timm's" + (f" with {options}" if options else "") + (f", {heads} heads" if heads else "")

    def assumed(self, flags: Flags) -> str:
        return f"padding, strides and activations are those of timm's {flags['MODEL.TIMM.NAME']}"

    def library_names(self, stated: Flags) -> dict[str, str | None]:
        """Those of the network that ``stated`` names; what its maps do not need, such as its classifier, is left."""
        if not (name := stated.get("MODEL.TIMM.NAME")):
            return {}
        options = _hashable(stated.get("MODEL.TIMM.OPTIONS", ()))
        kept = _tensors_of(name, options, stated.get("MODEL.TIMM.FINAL_NORM", True))
        return {key: f"timm.{key}" if key in kept else None for key in _tensors_of(name, options, None)}

    def flags_of_tensors(self, tensors: Tensors, stated: Flags) -> Flags:
        """As stated; the final norm counts where the file has it."""
        name, options = stated["MODEL.TIMM.NAME"], list(stated.get("MODEL.TIMM.OPTIONS", ()))
        without = {f"timm.{key}" for key in _tensors_of(name, _hashable(options), False)}
        norm = stated.get("MODEL.TIMM.FINAL_NORM", not tensors.keys() <= without)
        return dict(zip(self.FLAG_KEYS, (name, options, norm), strict=True))

    def card(self, flags: Flags) -> Card:
        name, options, final_norm = (flags[key] for key in self.FLAG_KEYS)
        form = _form(name, _hashable(options), final_norm)
        last = list(form.stages.values())[-1]
        facts = {"timm_name": name, "kwargs": form.kwargs, "index": last.index, "features": last.channels}
        facts |= {"norm": final_norm, "prune_norm": not final_norm}
        norm = "its last norm" if final_norm else "no norm after its last block"
        return Card(
            f"{self.title(flags)}, with {norm}",
            f"no head. An image becomes {last.channels} numbers, the mean of the last map, whose stride is "
            f"{last.stride}.",
            facts,
            {"timm": _SNIPPET},
        )


# ResNets of timm's that are torchvision's; others have the same tensors and other layers.
_PLAIN_RESNETS = """
resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d resnext101_32x4d resnext101_32x8d resnext101_32x16d
resnext101_32x32d resnext101_64x4d wide_resnet50_2 wide_resnet101_2
"""
_RESNETS_OF_OTHER_LAYERS = ("resnetaa50", "resnetblur18", "resnetblur50")
# Options under which a network computes with the same weights.
_OF_SAME_WEIGHTS = """
attn_drop_rate drop_path_rate drop_rate dynamic_img_pad dynamic_img_size global_pool img_size num_classes
patch_drop_rate pos_drop_rate proj_drop_rate strict_img_size
"""


def flags_of_name(name: str) -> Flags:
    """What a name of timm's says of weights: the network, and with a tag (``vit_small_patch16_224.dino``) their pixels.

    Options of a network that has no name of its own may follow: ``vit_small_patch16_224,num_heads=12``.

    Raises:
        UserError: timm knows no such name; an option without a value.
    """
    from timm import models

    name, _, options = name.partition(",")
    network, tag = models.split_model_name_tag(name)
    if not models.is_model(network):
        meant = did_you_mean(network, models.list_models())
        raise UserError(f"--timm {name}: timm has no such network; expected a name of timm.list_models(){meant}")
    flags: Flags = {"MODEL.TIMM.NAME": network}
    if options:
        try:
            call = ast.parse(f"network({options})", mode="eval").body
            pairs = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        except (ValueError, SyntaxError):
            pairs = {}
        if not pairs or None in pairs or call.args:
            raise UserError(f"--timm {name}: its options are {options}, expected each as NAME=VALUE")
        flags["MODEL.TIMM.OPTIONS"] = [item for pair in pairs.items() for item in pair]
    return {**flags, **_pixels_of_tag(name)} if tag else flags


def _pixels_of_tag(name: str) -> Flags:
    from timm import models

    try:
        weights = models.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError as error:
        raise UserError(f"--timm {name}: {first_line(error)}") from error
    return _pixels(weights.mean, weights.std)


def _pixels(mean: Sequence[float], std: Sequence[float]) -> Flags:
    """Statistics of 0..1 as flags of 0..255. Rounded: 255 * 0.224 is not quite the 57.12 of the configs."""
    statistics = {"MODEL.PIXEL_MEAN": mean, "MODEL.PIXEL_STD": std}
    return {key: [round(255 * value, 6) for value in values] for key, values in statistics.items()}


def default_pixels(stated: Flags) -> tuple[Flags, str]:
    """Pixel statistics of the weights that timm loads by default for the network that is stated, and their full name.

    ({}, "") where none is, or options make it another network than the one those weights are of.
    """
    name, options = stated.get("MODEL.TIMM.NAME"), stated.get("MODEL.TIMM.OPTIONS", [])
    if not name or not set(options[::2]) <= set(_OF_SAME_WEIGHTS.split()):
        return {}, ""
    from timm import models

    weights = models.get_pretrained_cfg(name)
    full_name = ".".join(filter(None, (name, weights.tag)))
    return _pixels(weights.mean, weights.std), full_name


def is_plain_resnet(stated: Flags) -> bool:
    """Whether the network of timm's that is stated is torchvision's ResNet, and so Detectron2's too."""
    is_plain = stated.get("MODEL.TIMM.NAME") in _PLAIN_RESNETS.split()
    return is_plain and set(stated.get("MODEL.TIMM.OPTIONS", [])[::2]) <= set(_OF_SAME_WEIGHTS.split())


def refuse_resnet_of_other_layers(file: str) -> None:
    """Raises UserError for a file of a ResNet's tensors that is called as one of timm's with layers that no tensor
    shows."""
    name = next((name for name in _RESNETS_OF_OTHER_LAYERS if name in file.lower()), "")
    way_out = f"--timm {name} converts it; if it is a plain ResNet, give the file another name"
    expect(name == "", f"{file}: {name} has a ResNet's tensors and other layers than a ResNet; {way_out}")


def flags_on_hub(weights: Path) -> Flags:
    """What timm's ``config.json`` beside weights, as on Hugging Face's hub, says of them: the network, its options and
    the pixels; {} where none lies there.

    Raises UserError for a network that timm does not have, or statistics that are none.
    """
    path = weights.parent / "config.json"
    try:
        config = json.loads(path.read_text())
        name, options = config["architecture"].partition(".")[0], config.get("model_args") or {}
        weights_of = config.get("pretrained_cfg") or config  # older files have it all at the top
        mean, std, tag = (weights_of.get(key) for key in ("mean", "std", "tag"))
        pairs = [item for pair in options.items() for item in pair]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    full_name = f"{name}.{tag}" if tag and mean is None else name
    try:
        flags = flags_of_name(full_name) | ({"MODEL.TIMM.OPTIONS": pairs} if pairs else {})
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if mean is None or std is None:
        return flags
    of_unit = _are_statistics(mean) and _are_statistics(std) and min(std) > 0
    expect(of_unit, f"{path}: mean {mean} and std {std}: expected three numbers from 0 to 1 each")
    return flags | _pixels(mean, std)


def _are_statistics(values: object) -> bool:
    is_triple = isinstance(values, list) and len(values) == 3
    return is_triple and all(type(value) in (int, float) and 0 <= value <= 1 for value in values)
