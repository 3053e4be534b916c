"""The configuration that weights are valid under, kept in NAME.yaml next to NAME.pth.

Silent mis-transfer (flipped channels, another stride, other pixel statistics) costs tens of AP and raises
no error by itself, so the flags travel with the weights and every user of the weights compares them.
"""

import logging
import shlex
from dataclasses import replace
from pathlib import Path

import torch
import yaml

from revisit.config import add_revisit_config
from revisit.data.images.deep_images import format_flags, format_keys, format_of, pixel_format
from revisit.errors import UserError, expect, first_few, without_secrets
from revisit.files import file_digest, is_url, local_copy, read_yaml, write_whole
from revisit.keys import NETWORK, declaration, value_of
from revisit.modeling.backbone.description import BackboneDescription, Flags, Tensors, families, family_of

from detectron2.config import CfgNode, get_cfg

logger = logging.getLogger(__name__)

# What weights of other projects expect: MoCo, the reference code, DenseCL, SwAV, VirTex, torchvision, timm's resnet50.
IMAGENET: Flags = {
    "MODEL.PIXEL_MEAN": [123.675, 116.28, 103.53],  # 0..255
    "MODEL.PIXEL_STD": [58.395, 57.12, 57.375],
    "INPUT.FORMAT": "RGB",
}


def flag_keys(description: BackboneDescription | None) -> tuple[str, ...]:
    """Config keys that weights depend on: the pixels', after those of the backbone's description."""
    return (*(description.FLAG_KEYS if description else ()), *IMAGENET)


def pixel_keys() -> tuple[str, ...]:
    """Config keys of images, in the flags of weights of every family."""
    return (*format_keys(), *IMAGENET)


def stated_for(description: BackboneDescription, stated: Flags) -> Flags:
    """Those of the values that a user or a config states on which weights of the family depend."""
    keys = {*flag_keys(description), *format_keys()}
    return {key: value for key, value in stated.items() if key in keys and value is not None}


def flags_of(cfg: CfgNode, description: BackboneDescription | None) -> Flags:
    """The flags of a config, plain values by full key."""
    flags = {key: _plain(value_of(cfg, key)) for key in flag_keys(description)}
    return flags | format_flags(pixel_format(cfg))


def _plain(value: object) -> object:
    """With lists for tuples, as a YAML file has them."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def flags_to_config(flags: Flags) -> CfgNode:
    """A config with the flags' values."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_list([item for pair in flags.items() for item in pair])
    return cfg


def flags_path(weights: str | Path) -> Path:
    """Where the flags of a weight file lie."""
    return Path(weights).with_suffix(".yaml")


def write_flags(weights: str | Path, flags: Flags, source: str, licence: str = "", file: Path | None = None) -> None:
    """Write NAME.yaml next to NAME.pth, with the origin and the licence of the weights in words.

    With ``file``, where the weights lie until they get their name, it has their checksum: a process that is killed
    between the two leaves a pair that ``read_flags`` refuses.
    """
    content = {"source": source}
    if licence:
        content["licence"] = licence
    if file:
        content["sha256"] = file_digest(file)
    text = yaml.safe_dump({**content, "config": flags}, sort_keys=False)
    write_whole(
        flags_path(weights),
        f"# {Path(weights).name} is valid under this configuration alone; Revisit refuses another.\n"
        f"{without_secrets(text)}",
    )


def read_flags(weights: str | Path) -> tuple[Flags | None, str, str]:
    """The flags of a weight file, here or at a URL, None without a flag file, and what they say about its source and
    of its licence.

    Raises UserError for a file that holds none, or more than these (``expect_flags``), or those of other weights, by
    their checksum where it has one.
    """
    path = _flags_file(weights)
    if path is None:
        return None, "", ""
    try:
        content = read_yaml(path)
        flags = content["config"]
        checksum = content.get("sha256")
        source = str(content.get("source") or "")
        licence = str(content.get("licence") or "")
    except (UserError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path} is not a flag file: expected the keys source and config, as tools/convert_to_d2.py writes it"
        ) from error
    expect_flags(flags, str(path))
    _check_checksum(path, checksum, weights)
    return flags, source, licence


def check_pair(weights: Path) -> None:
    """Raise UserError where the flag file next to weights has the checksum of others: no reader takes such a pair."""
    path = flags_path(weights)
    content = read_yaml(path) if path.is_file() else None
    if isinstance(content, dict):
        _check_checksum(path, content.get("sha256"), weights)


def _check_checksum(path: Path, checksum: object, weights: str | Path) -> None:
    expect(
        checksum is None or checksum == file_digest(local_copy(str(weights))),
        f"{path} is of other weights than {weights}, whose sha256 differs: convert them again, or remove its line "
        "sha256 if you have changed them yourself",
    )


def expect_flags(flags: object, where: str) -> None:
    """Raise UserError for flags in a file that are more than facts of a network and its pixels: they name no module, no
    place, and nothing of a run."""
    expect(isinstance(flags, dict), f"{where}: its flags are a {type(flags).__name__}: expected keys and values")
    other = [str(key) for key in flags if not _is_flag(key)]
    expect(
        not other,
        f"{where}: no weights depend on {first_few(other)}: remove it, or name the modules that know it (--imports, "
        "IMPORTS)",
    )
    expect(not is_url(str(flags)), f"{where}: a URL is no fact of a network: remove it")


def _is_flag(key: object) -> bool:
    of_families = [{*flag_keys(family), *family.FOLDED} for family in families()]
    every = {*pixel_keys()}.union(*of_families)
    return isinstance(key, str) and (key in every or declaration(key).scope == NETWORK)


def network_flags(flags: Flags) -> Flags:
    """Those of the flags of weights that say which network and which pixels they are of; {} of no known family."""
    family = family_of(flags)
    keys = {*flag_keys(family), *family.FOLDED, *format_keys()} if family else set()
    return {key: value for key, value in flags.items() if key in keys}


def _flags_file(weights: str | Path) -> Path | None:
    """The file with the flags of weights, on this machine; None where there is none. Raises UserError where nobody can
    say, because the machine of a URL does not answer or refuses."""
    path = flags_path(weights)
    if is_url(str(weights)):
        folder, slash, name = str(weights).partition("?")[0].rpartition("/")
        try:
            path = local_copy(f"{folder}{slash}{Path(name).with_suffix('.yaml')}", "flags of the weights")
        except UserError as error:
            cause = error.__cause__
            out_of_reach = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
            if out_of_reach and getattr(cause, "code", None) != 404:  # of HTTP
                raise
            return None
    return path if path.is_file() else None


def is_folded(tensors: Tensors) -> bool:
    """Whether batch norm is a scale and a bias: every layer's mean is 0 and its variance 1."""
    means = [torch.as_tensor(value) for key, value in tensors.items() if key.endswith(".running_mean")]
    variances = [torch.as_tensor(value) for key, value in tensors.items() if key.endswith(".running_var")]
    if not means or any(mean.any() for mean in means):
        return False
    return all(((variance - 1).abs() < 1e-4).all() for variance in variances)


def check_flags(flags: Flags, cfg: CfgNode, description: BackboneDescription | None, weights: str) -> None:
    """Raise UserError with every key in which a config disagrees with the flags of the weights, and both values."""
    _check_family(flags, cfg, description, weights)
    check_channels(flags, cfg, weights)
    folded = [key for key in flags if description and key in description.FOLDED]
    ours = {key: _plain(value_of(cfg, key)) for key in (*flag_keys(description), *folded)}
    ours |= format_flags(pixel_format(cfg).seen)
    seen = format_of(flags, ()).seen
    flags = without_pixels_of_photographs(flags | format_flags(seen), cfg)
    further = format_flags(replace(seen, bits=None)).keys()  # photographs of 8 bits are read without a word
    ours |= dict.fromkeys(further - ours.keys())
    wrong = {key: value for key, value in ours.items() if flags.get(key, value) != value}
    if wrong:
        listed = "; ".join(f"{key} is {value} here and {flags[key]} there" for key, value in wrong.items())
        advice = ""
        if wrong.keys() & set(folded):
            advice = (
                " Batch norm without statistics cannot be trained on: keep it frozen, or convert the weights with "
                "--data IMAGES"
            )
        raise UserError(f"{weights} was made under another configuration: {listed}. Change the config.{advice}")


def is_for_photographs_alone(flags: Flags, cfg: CfgNode) -> bool:
    """Whether weights see photographs, and the images of a config have channels: their first convolution is mapped."""
    return bool(pixel_format(cfg).channels) and not format_of(flags, ()).channels


def without_pixels_of_photographs(flags: Flags, cfg: CfgNode) -> Flags:
    """Flags that a config whose images have channels must agree with: MODEL.STEM_FROM maps weights of photographs."""
    if not is_for_photographs_alone(flags, cfg):
        return flags
    return {key: value for key, value in flags.items() if key not in pixel_keys()}


def check_channels(flags: Flags, cfg: CfgNode, weights: str) -> None:
    """Raise UserError for weights of channels where the images of a config have others, another order, or none."""
    theirs = format_of(flags, ()).channels
    ours = pixel_format(cfg).channels
    images = f"the images have {' '.join(ours)}" if ours else "the images are photographs, seen as RGB"
    expect(
        theirs in ((), ours),
        f"{weights} sees the channels {' '.join(theirs)}, and {images}: set INPUT.CHANNELS "
        f'"{" ".join(theirs)}" for such images, or start from other weights',
    )


def check_stated_flags(
    flags: object, cfg: CfgNode, description: BackboneDescription | None, weights: str, *, is_folded: bool
) -> None:
    """As check_flags, of whatever a file says. Without flags it warns; batch norm that ``is_folded`` must be frozen."""
    if flags is None:
        logger.warning(
            f"{weights} holds tensors without flags (a bare state dict, or weights of others), and none lie "
            "next to it: nothing says under which depth, stride, channel order and pixel statistics it is valid"
        )
        flags = description.FOLDED if description and is_folded else {}
    expect(isinstance(flags, dict), f"{weights} has a {type(flags).__name__} for flags: not a checkpoint of Revisit")
    check_flags(flags, cfg, description, weights)


def _check_family(flags: Flags, cfg: CfgNode, description: BackboneDescription | None, weights: str) -> None:
    """Raise UserError, with the keys that are needed, for weights of another family than the config builds."""
    theirs = family_of(flags)
    if theirs is None or description is None or theirs.NAME == description.NAME:
        return
    differ = f"{weights} is of a {theirs.NAME}, and the config builds a {description.NAME}"
    own = {key: flags[key] for key in theirs.FLAG_KEYS if flags.get(key) not in (None, [], False)}
    stated = without_pixels_of_photographs({key: flags[key] for key in flag_keys(theirs) if key in flags}, cfg)
    own |= {key: value for key, value in stated.items() if value not in (None, _plain(value_of(cfg, key)))}
    if needed := theirs.keys_to_build(flags, cfg):
        raise UserError(f"{differ}: add {_typed(needed | own)}")
    frozen = f"; where its features stay frozen add {_typed({'MODEL.BACKBONE.NAME': theirs.BUILDER} | own)}"
    raise UserError(
        f"{differ}: expected a recipe that can, such as own_images/detection_fpn.yaml for a "
        f"detector{frozen if theirs.BUILDER else ''}"
    )


def _typed(values: Flags) -> str:
    """Values by key, as they are typed at the end of a command."""
    return " ".join(f"{key} {shlex.quote(str(value))}" for key, value in values.items())
