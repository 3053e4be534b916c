"""The first convolution: which tensors of a backbone see the channels of images, and what they are for others."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from revisit.checkpoint.reading import shapes_of
from revisit.data.images.pixel_format import COLOURS
from revisit.errors import expect
from revisit.keys import TRAINING, Rule, declare, with_values
from revisit.modeling.backbone.description import BackboneDescription, Tensors

from detectron2.config import CfgNode

RGB, MEAN, ZERO = "rgb", "mean", "zero"
WORDS = (*RGB, MEAN, ZERO)

_RULE = Rule(
    f"a word for each of INPUT.CHANNELS, of {', '.join(WORDS)}, with spaces between them, or ''",
    lambda value: isinstance(value, str) and set(value.split()) <= set(WORDS),
)
declare(
    "MODEL.STEM_FROM",
    "",
    "What the first convolution of weights of RGB photographs gives each of INPUT.CHANNELS, such as `r g b mean`: that "
    "of red, green or blue, their mean, or zero. '': by the channels' names; mean where a name is no colour.",
    _RULE,
    scope=TRAINING,
)


def stem_words(channels: Sequence[str], stated: str = "") -> tuple[str, ...]:
    """A word for each of the named channels, as ``stated`` or by their names. Raises UserError for another number of
    words."""
    if not stated:
        by_name = dict(zip((*COLOURS, *RGB), RGB * 2, strict=True))
        return tuple(by_name.get(name.lower(), MEAN) for name in channels)
    words = tuple(stated.split())
    expect(
        len(words) == len(channels),
        f"MODEL.STEM_FROM {stated} has {len(words)} words: expected one for each of INPUT.CHANNELS "
        f"{' '.join(channels)}",
    )
    return words


def stem_for(weight: Tensor, words: Sequence[str]) -> Tensor:
    """The first convolution (out, n, k, k) for n channels, of that for red, green and blue (out, 3, k, k).

    A colour is shared among the channels that have its word. ``mean`` channels share the mean of the three colours; or
    their sum where no channel is a colour, so that a grey photograph in all channels has the maps that it has as RGB.
    The mean of an image is 0 after normalisation: channels that have but their mean change no map.
    """
    colours = dict(zip(RGB, weight.unbind(1), strict=True))
    shared = weight.mean(1) if set(words) & set(RGB) else weight.sum(1)
    sources = {**colours, MEAN: shared, ZERO: torch.zeros_like(shared)}
    return torch.stack([sources[word] / words.count(word) for word in words], dim=1)


def change_stem(
    tensors: dict[str, Any], description: BackboneDescription, cfg: CfgNode, change: Callable[[Tensor], Tensor]
) -> Tensors:
    """Tensors of a backbone for three channels, or of a model around it, with its first convolutions changed.

    Args:
        cfg: the config that ``description`` builds the backbone of.
        change: of a weight (out, 3, k, k); some networks have two that see the images.

    Raises:
        UserError: a network that sees images by something else than convolutions, or tensors without them.
    """
    title = f"the first convolution of a {description.NAME}"
    names = _names_of_stem(description, cfg)
    ends = tuple(f".{name}" for name in names)
    stems = {key: torch.as_tensor(value) for key, value in tensors.items() if f".{key}".endswith(ends)}
    expect(stems, f"{title} is not among the tensors: convert them with tools/convert_to_d2.py")
    for key, value in stems.items():
        expect(
            value.dim() == 4 and value.shape[1] == len(RGB),
            f"{title}, {key}, is {tuple(value.shape)}: expected (out, 3, height, width)",
        )
    return {**tensors, **{key: change(value) for key, value in stems.items()}}


def _names_of_stem(description: BackboneDescription, cfg: CfgNode) -> list[str]:
    """Of the tensors whose shapes depend on the number of channels: those that see the images, and no others."""
    shapes = []
    for count in (3, 4):
        with torch.device("meta"):
            network = description.build(with_values(cfg, {"MODEL.PIXEL_MEAN": [0.0] * count}))
        shapes.append(shapes_of(network.state_dict()))
    three, four = shapes
    return [key for key in three if three[key] != four[key]]
