"""Backbone weights of any source under Revisit's names, complete and with the flags that they are valid under."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from revisit.checkpoint.detector_parts import PARTS
from revisit.checkpoint.detectron2_layouts import zoo_flags
from revisit.checkpoint.flags import IMAGENET, flag_keys, flags_of, is_folded
from revisit.checkpoint.foreign_layouts import (
    author_of,
    backbone_of,
    in_library_layout,
    is_of_detectron2,
    licence_of,
    recognise,
    selected,
    start_of,
    tensors_of,
    training_of,
)
from revisit.checkpoint.reading import require_finite
from revisit.config import add_revisit_config
from revisit.errors import UserError, expect, first_few, first_line
from revisit.modeling.backbone.description import BackboneDescription, Flags, Tensors, families

from detectron2.config import CfgNode, get_cfg

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_AVERAGE = re.compile(r"(^|_)(ema|teacher)(_|$)")  # names of weights that are a moving average of those beside them
_COUNTER = "num_batches_tracked"  # of a BN layer; files older than it have none


class BackboneWeights(NamedTuple):
    """A backbone under its own names without prefix, such as ``res2.0.conv1.weight``."""

    tensors: Tensors
    flags: Flags
    description: BackboneDescription
    origin: str  # in words: ``revisit: model_final.pth, kNN-MoCo, 1188 iterations``; "" if nothing says it
    parts: Tensors = {}  # pyramid and box head that were learned with it, under names such as ``fpn_lateral2.bias``
    licence: str = ""  # of the weights, or of those that their training started from; "" if none is on record
    assumed: tuple[str, ...] = ()  # in words, what the conversion chose or took to be so

    @property
    def source(self) -> str:  # the layout that they were found in, one of SOURCES
        return self.origin.partition(":")[0]

    @property
    def title(self) -> str:  # such as ResNet-50
        return self.description.title(self.flags)


def convert(
    checkpoint: dict,
    source: str = "auto",
    name: str = "checkpoint",
    stated: Flags | None = None,
    weights_of: str = "",
    strip: str = "",
    drop: Sequence[str] = (),
) -> BackboneWeights:
    """Take the backbone out of a loaded checkpoint.

    Args:
        checkpoint: what ``read_checkpoint`` returned.
        source: one of ``SOURCES``, or ``auto`` to recognise it.
        name: of its file, for the origin.
        stated: values by full key that the checkpoint itself does not say: of the config that a model of Detectron2's
            was trained under, or MODEL.TIMM.NAME. Further keys are ignored.
        weights_of: ``ema`` or ``student``, of a checkpoint that holds a moving average and what it is an average of; ""
            takes what lies under ``model``, ``state_dict`` or ``teacher``.
        strip: takes only the tensors whose names begin with it, without it.
        drop: patterns (fnmatch) of names whose tensors are left out first.

    Raises:
        UserError: no backbone in it, a key that cannot be placed, or a backbone tensor without a value.
    """
    stated, is_named = stated or {}, source != "auto"
    checkpoint, taken = _of_average_or_not(checkpoint, weights_of)
    checkpoint, chosen = selected(checkpoint, strip, drop)
    checkpoint = in_library_layout(checkpoint, stated)
    if source == "auto":
        source = recognise(checkpoint, stated)
    tensors, description, left = backbone_of(checkpoint, source, stated)
    taken = tuple(filter(None, (*taken, *chosen, left)))
    stated = {key: value for key, value in stated.items() if key in flag_keys(description)}
    if source == "revisit":
        flags = checkpoint["flags"]
    elif source == "detectron2":  # a config is over Detectron2's defaults
        flags = flags_of(flags_to_config(stated), description) if stated else None
        flags = flags or zoo_flags(tensors, description, author_of(checkpoint))
    else:
        pixels, by = _pixels(source, stated, description)
        flags = {**pixels, **stated, **description.flags_of_tensors(tensors, stated)}
        taken += (f"pixel statistics: {by}", f"assumed, because no tensor shows it: {description.assumed(flags)}")
    if is_of_detectron2(checkpoint, source) and is_folded(tensors):
        flags = {**flags, **description.FOLDED}
    check_backbone(tensors, flags, description)
    learned = [part.of(tensors_of(checkpoint)) for part in PARTS if part.flag_keys[0] in flags]
    parts = {key: value for each in learned for key, value in each.items()}
    for key, value in parts.items():
        _check_value(key, value, value)
    origin = ", ".join(filter(None, (f"{source}: {name}", training_of(checkpoint, source))))
    of_start = start_of(checkpoint).get("licence", "") if source == "revisit" else ""
    licence = of_start or licence_of(source, is_named=is_named)
    return BackboneWeights(tensors, flags, description, origin, parts, licence, taken)


def _pixels(source: str, stated: Flags, description: BackboneDescription) -> tuple[Flags, str]:
    """Pixel statistics that the weights of a source expect, and in words whose they are."""
    if "MODEL.PIXEL_MEAN" in stated:
        return IMAGENET, "as stated by --timm's tag, config.json or --config"
    pixels, name = description.default_pixels(stated) if source == "timm" else ({}, "")
    if name:
        return {**IMAGENET, **pixels}, f"those of {name}, timm's default; of others give --timm the tag"
    return IMAGENET, "ImageNet's, as nothing states others"


def _of_average_or_not(checkpoint: dict, wanted: str) -> tuple[dict, tuple[str, ...]]:
    """The checkpoint with the weights that are ``wanted``, ``ema`` or ``student``, under ``model``, and in words which
    they are where it has both."""
    averages = [key for key in checkpoint if _AVERAGE.search(str(key)) and _tensors_in(checkpoint[key])]
    plain = [key for key in ("model", "state_dict", "student") if _tensors_in(checkpoint.get(key))]
    if not averages:
        expect(
            wanted != "ema", f"--weights-of ema: the checkpoint has no moving average ({first_few(_names(checkpoint))})"
        )
        return checkpoint, ()
    expect(wanted != "student" or bool(plain), f"--weights-of student: the checkpoint has {first_few(averages)} alone")
    is_average = wanted == "ema" or not plain or (not wanted and plain == ["student"])
    key, kind = (averages[0], "the moving average") if is_average else (plain[0], "the weights without average")
    other = f"; --weights-of {'student' if is_average else 'ema'} takes the other" if plain else ""
    return {**checkpoint, "model": _tensors_in(checkpoint[key])}, (f"taken: {key}, {kind}{other}",)


def _names(checkpoint: dict) -> list[str]:
    return [str(key)[:60] for key in checkpoint]


def _tensors_in(value: object) -> dict:
    """The tensors of a part of a checkpoint, directly or one level below, without torch's count of averages; or {}."""
    values = value if isinstance(value, dict) else {}
    values = next(
        (values[key] for key in ("module", "state_dict", "model") if isinstance(values.get(key), dict)), values
    )
    kept = {key: tensor for key, tensor in values.items() if key != "n_averaged"}
    return kept if all(isinstance(tensor, torch.Tensor) for tensor in kept.values()) else {}


def stated_flags(path: Path, checkpoint: dict, network: str = "") -> Flags:
    """What is stated of the weights in a file beside their tensors: by ``network``, the name that its library has for
    it, by files beside it, and by its own name. Raises UserError for what does not fit together."""
    names = tensors_of(_of_average_or_not(checkpoint, "")[0]).keys()
    flags = {key: value for family in families() for key, value in family.stated(path, names, network).items()}
    expect(bool(flags) or not network, f"no family of backbones that is known has a {network}")
    return flags


def as_rgb(weights: BackboneWeights) -> BackboneWeights:
    """The same network for RGB: of weights for BGR the channels of the first convolution are turned round."""
    if weights.flags["INPUT.FORMAT"] == "RGB":
        return weights
    first = next(key for key, value in weights.tensors.items() if value.dim() == 4 and value.shape[1] == 3)
    tensors = {**weights.tensors, first: weights.tensors[first].flip(1)}
    turned = {name: weights.flags[name][::-1] for name in ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD")}
    return weights._replace(tensors=tensors, flags={**weights.flags, **turned, "INPUT.FORMAT": "RGB"})


def flags_to_config(flags: Flags) -> CfgNode:
    """A config with the flags' values."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_list([item for pair in flags.items() for item in pair])
    return cfg


def check_backbone(tensors: Tensors, flags: Flags, description: BackboneDescription) -> None:
    """Raise UserError unless every tensor holds numbers and has its place in the backbone that the flags describe, and
    every place its tensor."""
    try:
        cfg = flags_to_config(flags)
        with torch.device("meta"):
            model = description.build(cfg)
    except Exception as error:  # flags come from a file, and its author may have written anything
        reason = first_line(error)
        raise UserError(f"the checkpoint's flags describe no {description.NAME} ({reason}): {flags}") from error
    network = f"a {description.title(flags_of(cfg, description))}"
    expected = model.state_dict()
    for key, value in tensors.items():
        if key not in expected:
            raise UserError(f"cannot place {key}: {network} has no such tensor")
        _check_value(key, value, expected[key])
    for key in expected:
        if key not in tensors and not key.endswith(_COUNTER):
            raise UserError(f"no value for {key} of {network} in the checkpoint")


def _check_value(key: str, value: Tensor, expected: Tensor) -> None:
    is_plain = value.layout == torch.strided and not value.is_quantized and not value.is_meta
    dtypes = _FLOATS if expected.is_floating_point() else (expected.dtype,)
    if not is_plain or value.dtype not in dtypes:
        raise UserError(f"{key} is a {value.dtype} tensor of layout {value.layout}: expected plain numbers")
    if value.shape != expected.shape:
        raise UserError(f"{key} is {tuple(value.shape)}, expected {tuple(expected.shape)}")
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise UserError(f"{key} claims {tuple(value.shape)} numbers and has fewer: expected each of them")
    require_finite(key, value)
