"""What a name of timm's, a file's name and a config.json say of weights: the network, its options and the pixels."""

import ast
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from projects.Weights.card_flags import flags_on_card
from revisit.errors import UserError, did_you_mean, expect, first_line
from revisit.files import read_json
from revisit.modeling.backbone.description import Flags

_CONV_OF_BLOCK = re.compile(r"layer\d\.\d+\.conv\d\.weight$")
_CONV_OF_RESNET = "layer1.0.conv1.weight"
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


def stated_flags(path: Path, names: Collection[str], network: str = "") -> Flags:
    """What is stated of the weights in a file, whose tensors have these names: by ``network``, timm's name that the
    user gave, and by the model card of an export, or timm's ``config.json`` in its folder, of the same network.

    Tensors of a ResNet are Detectron2's, unless either names a network of other layers. Raises UserError where the
    file's own name does.
    """
    is_resnet = any(name.endswith(_CONV_OF_RESNET) for name in names)
    on_card = flags_on_card(path)
    on_hub = on_card or ({} if is_resnet and _CONV_OF_RESNET not in names else flags_on_hub(path))
    if network:
        named = flags_of_name(network)
        is_same = on_hub.get("MODEL.TIMM.NAME") == named["MODEL.TIMM.NAME"]
        return on_hub | named if is_same else named
    if on_card:
        return on_card
    return _flags_of_resnet(path, names, on_hub) if is_resnet else on_hub


def _flags_of_resnet(path: Path, names: Collection[str], on_hub: Flags) -> Flags:
    if not on_hub:
        _refuse_other_resnets(path.name, [name for name in names if "timm." not in name])  # of no run of ours
    return without_plain_resnet(on_hub)


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
    flags = {"MODEL.TIMM.NAME": network}
    if options:
        flags["MODEL.TIMM.OPTIONS"] = _options(name, options)
    return {**flags, **_pixels_of_tag(name)} if tag else flags


def _options(name: str, options: str) -> list[object]:
    """Arguments in Python's words, each after its name. Raises UserError for other words."""
    try:
        call = ast.parse(f"network({options})", mode="eval").body
        pairs = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, SyntaxError):
        pairs = {}
    if not pairs or None in pairs or call.args:
        raise UserError(f"--timm {name}: its options are {options}, expected each as NAME=VALUE")
    return [item for pair in pairs.items() for item in pair]


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
    name = stated.get("MODEL.TIMM.NAME")
    if not name or not _has_its_weights(stated):
        return {}, ""
    from timm import models

    weights = models.get_pretrained_cfg(name)
    full_name = ".".join(filter(None, (name, weights.tag)))
    return _pixels(weights.mean, weights.std), full_name


def _has_its_weights(stated: Flags) -> bool:
    """Whether the network that is stated computes with the weights that its name stands for."""
    return set(stated.get("MODEL.TIMM.OPTIONS", [])[::2]) <= set(_OF_SAME_WEIGHTS.split())


def without_plain_resnet(stated: Flags) -> Flags:
    """Without the network of timm's, where it is torchvision's ResNet, and so Detectron2's too."""
    is_plain = stated.get("MODEL.TIMM.NAME") in _PLAIN_RESNETS.split() and _has_its_weights(stated)
    return {key: value for key, value in stated.items() if not (is_plain and key.startswith("MODEL.TIMM."))}


def _refuse_other_resnets(file: str, names: Collection[str]) -> None:
    """Raises UserError for a file of a ResNet's tensors that is called as one of timm's with layers that no tensor
    shows; and for one with a stem of three convolutions, or with squeeze-and-excitation, of which timm has many: with
    one that has as many layers."""
    name = next((name for name in _RESNETS_OF_OTHER_LAYERS if name in file.lower()), "")
    way_out = f"--timm {name} converts it; if it is a plain ResNet, give the file another name"
    expect(name == "", f"{file}: {name} has a ResNet's tensors and other layers than a ResNet; {way_out}")
    convolutions = {match[0] for match in map(_CONV_OF_BLOCK.search, names) if match}
    has_deep_stem = any(re.search(r"(^|\.)conv1\.0\.weight$", name) for name in names)
    has_se = any(re.search(r"layer1\.0\.se\.", name) for name in names)
    network = f"{'se' * has_se}resnet{2 + len(convolutions)}{'d' * has_deep_stem}"
    way_out = f"--timm {network} converts it, if it is that one of timm's, else --timm with its own name"
    expect(not (has_deep_stem or has_se), f"{file}: a ResNet with other layers than torchvision's; {way_out}")


def flags_on_hub(weights: Path) -> Flags:
    """What timm's ``config.json`` in the folder of weights, as on Hugging Face's hub, says about them: the network, its
    options and the pixels; {} without such a file.

    Raises UserError for a network that timm does not have, or statistics that are none.
    """
    path = weights.parent / "config.json"
    try:
        config = read_json(path)
        name = config["architecture"].partition(".")[0]
        options = [item for pair in (config.get("model_args") or {}).items() for item in pair]
        weights_of = config.get("pretrained_cfg") or config  # older files have it all at the top
        mean, std, tag = (weights_of.get(key) for key in ("mean", "std", "tag"))
    except (UserError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    full_name = f"{name}.{tag}" if tag and mean is None else name
    try:
        flags = flags_of_name(full_name)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if options:
        flags["MODEL.TIMM.OPTIONS"] = options
    return flags | _statistics(path, mean, std)


def _statistics(path: Path, mean: object, std: object) -> Flags:
    """Flags of what a file says about mean and deviation, {} where one is absent. Raises UserError for other values."""
    if mean is None or std is None:
        return {}
    of_unit = _are_statistics(mean) and _are_statistics(std) and min(std) > 0
    expect(of_unit, f"{path}: mean {mean} and std {std}: expected three numbers from 0 to 1 each")
    return _pixels(mean, std)


def _are_statistics(values: object) -> bool:
    is_triple = isinstance(values, list) and len(values) == 3
    return is_triple and all(type(value) in (int, float) and 0 <= value <= 1 for value in values)
