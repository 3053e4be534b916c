"""Backbone weights of any source under Revisit's names, complete and with the flags that they are valid under."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from revisit.checkpoint.detector_parts import PARTS
from revisit.checkpoint.flags import (
    IMAGENET,
    check_channels,
    flags_of,
    flags_to_config,
    is_for_photographs_alone,
    pixel_keys,
)
from revisit.checkpoint.reading import FLOATS, require_numbers, tensors_of
from revisit.checkpoint.sources import layout_of
from revisit.checkpoint.stem import change_stem, stem_for, stem_words
from revisit.data.images.deep_images import flags_of_images, format_flags, pixel_format
from revisit.errors import UserError, expect, first_line
from revisit.modeling.backbone.description import BackboneDescription, Flags, Tensors, families

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)

_COUNTER = "num_batches_tracked"  # of a BN layer; files older than it have none


class BackboneWeights(NamedTuple):
    """A backbone under its own names without prefix, such as ``res2.0.conv1.weight``."""

    tensors: Tensors
    flags: Flags
    description: BackboneDescription
    origin: str  # in words: ``revisit: model_final.pth, kNN-MoCo, 1188 iterations``; "" if nothing says it
    parts: Tensors = {}  # pyramid and box head that were learned with it, under names such as ``fpn_lateral2.bias``
    licence: str = ""  # of the weights, or of those that their training started from; "" if none is on record
    notes: tuple[str, ...] = ()  # in words, what the conversion chose or took to be so

    @property
    def source(self) -> str:  # the layout that they were found in, a name of ``source_layouts``
        return self.origin.partition(":")[0]

    @property
    def title(self) -> str:  # such as ResNet-50
        return self.description.title(self.flags)


def convert(
    checkpoint: dict, source: str = "auto", name: str = "checkpoint", stated: Flags | None = None
) -> BackboneWeights:
    """Take the backbone out of a loaded checkpoint.

    Args:
        checkpoint: what ``read_checkpoint`` returned.
        source: a name of ``source_layouts``, or ``auto`` to recognise it.
        name: of its file, for the origin.
        stated: values by full key that the checkpoint itself does not say: of the config that a model of Detectron2's
            was trained under, or the name of a network. Further keys are ignored.

    Raises:
        UserError: no backbone in it, a key that cannot be placed, or a backbone tensor without a value.
    """
    stated = stated or {}
    layout = layout_of(checkpoint, source, stated)
    backbone = layout.find_backbone(checkpoint, stated)
    check_backbone(backbone.tensors, backbone.flags, backbone.description)
    parts = _parts(checkpoint, backbone.flags)
    origin = ", ".join(filter(None, (f"{layout.NAME}: {name}", layout.training(checkpoint))))
    return BackboneWeights(
        backbone.tensors,
        backbone.flags,
        backbone.description,
        origin,
        parts,
        layout.licence(checkpoint, is_named=source != "auto"),
        backbone.notes,
    )


def _parts(checkpoint: dict, flags: Flags) -> Tensors:
    """The tensors of pyramid and box head that were learned with the backbone, which the flags say."""
    parts: Tensors = {}
    for part in PARTS:
        if part.flag_keys[0] in flags:
            parts |= part.of(tensors_of(checkpoint))
    for key, value in parts.items():
        _check_value(key, value, value)
    return parts


def stated_flags(path: Path, checkpoint: dict, network: str = "") -> Flags:
    """What is known of the weights in a file by other means than their tensors: by ``network``, its name in a library,
    by other files in the folder, and by the file's own name. Raises UserError where they disagree."""
    names = tensors_of(checkpoint).keys()
    flags = {key: value for family in families() for key, value in family.stated(path, names, network).items()}
    expect(flags or not network, f"no family of backbones that is known has a {network}")
    return flags


def as_rgb(weights: BackboneWeights) -> BackboneWeights:
    """The same network for RGB: of weights for BGR the channels of the first convolution are turned round."""
    if weights.flags["INPUT.FORMAT"] == "RGB":
        return weights
    cfg = flags_to_config(weights.flags)
    tensors = change_stem(weights.tensors, weights.description, cfg, lambda weight: weight.flip(1))
    turned = {name: weights.flags[name][::-1] for name in ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD")}
    return weights._replace(tensors=tensors, flags={**weights.flags, **turned, "INPUT.FORMAT": "RGB"})


def for_channels(weights: BackboneWeights, cfg: CfgNode) -> BackboneWeights:
    """Weights of RGB or BGR photographs for the channels of a config's images, as MODEL.STEM_FROM says; they see its
    pixels from then on. Others, and all for photographs, stay.

    PIXEL_STD of most weights is ImageNet's, so that the colours of photographs have deviations of 1, as channels do
    over their own. Weights over another one, which is not among the config's, are brought to ImageNet's.
    """
    if not is_for_photographs_alone(weights.flags, cfg):
        return weights
    channels = pixel_format(cfg).channels
    ours = cfg.MODEL.PIXEL_STD
    words = stem_words(channels, cfg.MODEL.STEM_FROM)
    weights = as_rgb(weights)
    theirs = weights.flags["MODEL.PIXEL_STD"]
    of_photographs = theirs if set(theirs) <= set(ours) else IMAGENET["MODEL.PIXEL_STD"]
    scale = torch.tensor(of_photographs, dtype=torch.float64) / torch.tensor(theirs, dtype=torch.float64)

    def stem(weight: Tensor) -> Tensor:
        return stem_for(weight.double() * scale.view(3, 1, 1), words).to(weight.dtype)

    tensors = change_stem(weights.tensors, weights.description, flags_to_config(weights.flags), stem)
    listed = ", ".join(f"{name} from {word}" for name, word in zip(channels, words, strict=True))
    logger.info(f"weights of RGB photographs see channels (MODEL.STEM_FROM): {listed}")
    return weights._replace(tensors=tensors, flags={**weights.flags, **flags_of(cfg, None)})


def for_images(weights: BackboneWeights, images: Sequence[dict] | Flags) -> BackboneWeights:
    """As for_channels, for images without a config, in the order of RGB: as the weights were trained, else as a sample
    of the images asks for. The flags say which.

    Args:
        images: records; or flags that say it already, of a table or of another process.

    Raises:
        UserError: weights of other channels than flags, or images that nothing fits.
    """
    weights = as_rgb(weights)
    meaning = flags_of_images(images, ()) if isinstance(images, Mapping) else flags_of_images(weights.flags, images)
    stated = {key: meaning[key] for key in pixel_keys() if meaning.get(key) is not None}
    cfg = flags_to_config({**weights.flags, **stated})
    pixels = pixel_format(cfg)
    sizes = {len(cfg.MODEL.PIXEL_MEAN), len(cfg.MODEL.PIXEL_STD)}
    expect(
        sizes == {pixels.count},
        f"flags with MODEL.PIXEL_MEAN or PIXEL_STD of {max(sizes)} values for {pixels.count} channels: make them again",
    )
    check_channels(weights.flags, cfg, f"a {weights.title}")
    weights = for_channels(weights, cfg)
    return weights._replace(flags={**weights.flags, **format_flags(pixels)})


def check_backbone(tensors: Tensors, flags: Flags, description: BackboneDescription) -> None:
    """Raise UserError unless every tensor holds numbers and has its place in the backbone that the flags describe, and
    every place its tensor."""
    try:
        cfg = flags_to_config(flags)
        with torch.device("meta"):
            model = description.build(cfg)
        count = len(cfg.MODEL.PIXEL_MEAN)
        pixels = pixel_format(cfg)
    except Exception as error:  # flags come from a file, and its author may have written anything
        reason = first_line(error)
        raise UserError(f"the checkpoint's flags describe no {description.NAME} ({reason}): {flags}") from error
    expect(
        count == pixels.count,
        f"the weights' MODEL.PIXEL_MEAN has {count} values, for {pixels.count} channels: state INPUT.CHANNELS, in a "
        "file that --config-file names",
    )
    network = f"a {description.title(flags_of(cfg, description))}"
    expected = model.state_dict()
    for key, value in tensors.items():
        expect(key in expected, f"cannot place {key}: {network} has no such tensor")
        _check_value(key, value, expected[key])
    for key in expected:
        expect(key in tensors or key.endswith(_COUNTER), f"no value for {key} of {network} in the checkpoint")


def _check_value(key: str, value: Tensor, expected: Tensor) -> None:
    dtypes = FLOATS if expected.is_floating_point() else (expected.dtype,)
    expect(value.dtype in dtypes, f"{key} is a {value.dtype} tensor of layout {value.layout}: expected plain numbers")
    expect(value.shape == expected.shape, f"{key} is {tuple(value.shape)}, expected {tuple(expected.shape)}")
    require_numbers(key, value)
