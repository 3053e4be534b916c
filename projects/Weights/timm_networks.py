"""timm's networks by their names, tried without values: what maps they have, and for which images."""

import math
import re
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from revisit.errors import UserError, did_you_mean, expect, first_line
from revisit.keys import short_repr

# What an option may be. Files state options too, and others of create_model's arguments name files to load and places
# to fetch weights from.
ARCHITECTURE = """
act_layer attn_drop_rate avg_down base_width cardinality channels class_token conv_bias conv_mlp depth depths dims
drop_path_rate drop_rate dynamic_img_pad dynamic_img_size embed_dim embed_dims expand_ratio fc_norm final_norm
global_pool head_dim img_size init_values kernel_size kernel_sizes layer_scale_init_value layers ls_init_value
mlp_layer mlp_ratio mlp_ratios no_embed_class norm_eps norm_layer num_classes num_features num_heads num_kv_heads
num_reg_tokens output_stride pad_type patch_drop_rate patch_size pos_drop_rate pos_embed pre_norm proj_bias
proj_drop_rate qk_norm qkv_bias ref_feat_shape reg_tokens rope_temperature rope_type stem_size stem_type stem_width
strict_img_size swiglu_mlp use_abs_pos_emb use_fc_norm use_grn use_post_norm use_rel_pos_bias use_rot_pos_emb
use_shared_rel_pos_bias widths window_ratio window_size
"""
# Bounds of what a file may state: timm's largest network has 48 blocks and 7 billion parameters.
LAYERS = ("depth", "depths", "layers")
MOST = dict.fromkeys(LAYERS, 400) | {"img_size": 1_536, "ref_feat_shape": 256, "window_size": 256}
LARGEST, MOST_VALUES, MOST_PARAMETERS = 100_000, 100, 10 * 10**9
_WORD = re.compile(r"\w{0,64}")
# How timm is asked for a network that takes images of any size; the first that it builds and that does so is taken.
_ANY_SIZE = (
    {"dynamic_img_size": True, "dynamic_img_pad": True},
    {"dynamic_img_size": True},
    {"strict_img_size": False},
    {},
)


Arguments = dict[str, object]  # of timm.create_model


class Stage(NamedTuple):
    """One of the maps that a network can return."""

    index: int  # among those of timm's ``forward_intermediates``
    channels: int
    stride: int  # px


class Form(NamedTuple):
    """What a network is like, tried without values."""

    kwargs: Arguments
    stages: dict[str, Stage]  # by name, in the network's order; of several maps of one stride the last
    multiple: int  # px: sides are padded to a multiple of it; 1 where the network itself rounds up
    heads: list[int]  # of its attention, rising; no tensor shows them


def hashable(options: object, level: int = 0) -> object:
    """Options with tuples for lists, at every level. Files state options, too: raises UserError for what is neither
    number nor word, or for many of them."""
    if not isinstance(options, list | tuple):
        is_plain = isinstance(options, str | int | float | None)
        expect(is_plain, f"MODEL.TIMM.OPTIONS: {short_repr(options)}: expected a number or a word")
        return options
    expect(level <= 3 and len(options) <= MOST_VALUES, f"MODEL.TIMM.OPTIONS: {len(options)} values in {level} lists")
    return tuple(hashable(option, level + 1) for option in options)


def build(name: str, kwargs: Arguments, indices: list[int], final_norm: bool, channels: int = 3) -> nn.Module:
    """A network for images of so many channels, down to the last of the maps with these indices."""
    network = _create(name, {**kwargs, "in_chans": channels})
    has_final_norm = final_norm and hasattr(network, "norm")
    # A network that has no such norm, as dpn92, would keep layers of its classifier instead.
    network.prune_intermediate_layers(indices, prune_norm=not has_final_norm)
    return network


def maps_of(network: nn.Module, images: Tensor, indices: list[int], final_norm: bool) -> list[Tensor]:
    """Maps (N, C, h, w) of (N, 3, H, W) images."""
    options = {"norm": final_norm, "output_fmt": "NCHW", "intermediates_only": True}
    return network.forward_intermediates(images, indices=indices, **options)


@cache
def form_of(name: str, options: tuple[object, ...], final_norm: bool) -> Form:
    """Try a network on the meta device, with images of two sizes. Raises UserError where it is no backbone."""
    expect(len(options) % 2 == 0, f"MODEL.TIMM.OPTIONS {list(options)}: expected each value after its name")
    stated = dict(zip(options[::2], options[1::2], strict=True))
    for option, value in stated.items():
        _require_sensible(str(option), value)
    for kwargs in _ANY_SIZE:
        try:
            with torch.device("meta"), torch.no_grad():
                return _form(name, kwargs | stated, final_norm)
        except UserError:
            raise
        except Exception as error:  # timm's or the network's own, of any kind
            reason = first_line(error)
    raise UserError(f"MODEL.TIMM.NAME {name!r} is no network for images of any size in timm: {reason}")


@cache
def tensor_names(name: str, options: tuple[object, ...], final_norm: bool | None) -> frozenset[str]:
    """State-dict keys of a network down to its last map, with or without its final norm; None: of the whole network."""
    form = form_of(name, options, bool(final_norm))
    last = max(stage.index for stage in form.stages.values())
    with torch.device("meta"):
        if final_norm is None:
            return frozenset(_create(name, form.kwargs).state_dict())
        return frozenset(build(name, form.kwargs, [last], final_norm).state_dict())


def _require_sensible(option: str, value: object) -> None:
    """Before anything is built, which takes as long as there are layers, and of some networks pairs of places."""
    arguments = ARCHITECTURE.split()
    meant = did_you_mean(option, arguments, most=3)
    expect(option in arguments, f"MODEL.TIMM.OPTIONS: {option} is no argument of an architecture{meant}")
    values, most = _values_in(value), MOST.get(option, LARGEST)
    words = [one for one in values if isinstance(one, str)]
    numbers = [one for one in values if isinstance(one, int | float)]
    largest = sum(numbers) if option in LAYERS else max(numbers, default=0)
    is_sensible = largest <= most and all(abs(number) <= LARGEST for number in numbers)
    stated = f"MODEL.TIMM.OPTIONS: {option} {short_repr(value)}"
    expect(is_sensible, f"{stated}: expected at most {most}")
    expect(all(map(_WORD.fullmatch, words)), f"{stated}: expected a word")


def _values_in(value: object) -> list[object]:
    """At every level."""
    if isinstance(value, tuple):
        return [one for item in value for one in _values_in(item)]
    return [value]


def _create(name: str, kwargs: Arguments) -> nn.Module:
    import timm  # only where one of its networks is used: it takes a second

    # Before create_model, which takes the address of a file or of a repository on the network too.
    if not timm.is_model(name):
        meant = did_you_mean(name, timm.list_models())
        raise UserError(f"MODEL.TIMM.NAME {name!r}: timm has no such network; expected one of its list_models(){meant}")
    return timm.create_model(name, pretrained=False, **kwargs)


def _form(name: str, kwargs: Arguments, final_norm: bool) -> Form:
    network = _create(name, kwargs).eval()
    count = sum(parameter.numel() for parameter in network.parameters())
    expect(
        count <= MOST_PARAMETERS, f"MODEL.TIMM.OPTIONS make {name} {count:,} parameters: at most {MOST_PARAMETERS:,}"
    )
    by_stride = {}
    for index, info in enumerate(network.feature_info):
        by_stride[info["reduction"]] = Stage(index, info["num_chs"], info["reduction"])
    stages = list(by_stride.values())
    largest = max(by_stride)
    if not _has_stages(network, stages, 3 * largest, 4 * largest, final_norm):
        raise ValueError(f"its maps do not have the strides {list(by_stride)} and the channels that it states")
    try:
        rounds_up = _has_stages(network, stages, 2 * largest + 1, 4 * largest - 3, final_norm)
    except Exception:
        rounds_up = False
    multiple = 1 if rounds_up else largest
    heads = {module.num_heads for module in network.modules() if hasattr(module, "num_heads")}
    names = [f"res{round(math.log2(stride))}" for stride in by_stride]
    return Form(kwargs, dict(zip(names, stages, strict=True)), multiple, sorted(heads))


def _has_stages(network: nn.Module, stages: list[Stage], height: int, width: int, final_norm: bool) -> bool:
    """Whether the maps of an image of this size have the stages' channels, and its sides over their strides."""
    maps = maps_of(network, torch.zeros(1, 3, height, width), [stage.index for stage in stages], final_norm)
    shapes = [tuple(one.shape[1:]) for one in maps]
    return shapes == [(s.channels, math.ceil(height / s.stride), math.ceil(width / s.stride)) for s in stages]
