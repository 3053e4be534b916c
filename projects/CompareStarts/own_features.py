"""What a probe looks at: the maps of a backbone; of a start with a neck or a box head of its own, what they become.

A neck is what stands between backbone and heads, such as a pyramid.

Which parts are a start's own follows from its tensors: they are not those that the same seed draws.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import roi_align

from revisit.modeling.backbone.fpn import below

from detectron2.structures import Boxes

BACKBONE = "backbone"


class Features(NamedTuple):
    """What they are of, in words, and a function of a batch of one image (1, 3, H, W), normalised, and of boxes (n, 4)
    px in it that returns their rows (n, C)."""

    title: str
    rows: Callable[[Tensor, Tensor], Tensor]


def own_features(model: nn.Module, drawn: nn.Module) -> Features:
    """The features of a network that a probe is of.

    Args:
        model: with the weights of the start, to be evaluated.
        drawn: the same network as the seed draws it, without these weights.
    """
    whole = model.backbone
    network = below(whole)
    learned = _learned(model, drawn)
    has_neck = whole is not network and any(_is_of_neck(name) for name in learned)
    has_head = _has_head(model) and any(name.startswith("roi_heads.box_head.") for name in learned)
    if has_head:
        title = "neck and box head" if has_neck else "box head"
        return Features(title, lambda images, boxes: _of_head(model, images, boxes))
    network = whole if has_neck else network
    strides = {name: shape.stride for name, shape in network.output_shape().items()}
    title = "neck" if has_neck else BACKBONE
    return Features(title, lambda images, boxes: of_maps(network(images), strides, boxes))


def of_maps(maps: Mapping[str, Tensor], strides: Mapping[str, int], boxes: Tensor) -> Tensor:
    """(n, C): means of boxes (n, 4) px over every map, of unit length in each. A map's cell n begins at n ``strides``
    px, whatever the image's size, as in a detector's RoIAlign."""
    pooled = [
        roi_align(maps[name], [boxes], (3, 3), 1 / stride, sampling_ratio=2, aligned=True).mean(dim=(2, 3))
        for name, stride in strides.items()
    ]
    return torch.cat([F.normalize(each, dim=1) for each in pooled], dim=1)


def _of_head(model: nn.Module, images: Tensor, boxes: Tensor) -> Tensor:
    """(n, C) what the classifier of a two-stage detector gets for these boxes."""
    heads = model.roi_heads
    maps = model.backbone(images)
    pooled = heads.box_pooler([maps[name] for name in heads.box_in_features], [Boxes(boxes)])
    return heads.box_head(pooled).flatten(start_dim=1)


def _has_head(model: nn.Module) -> bool:
    """Whether there is a box head of Detectron2's StandardROIHeads."""
    heads = getattr(model, "roi_heads", None)
    return all(hasattr(heads, name) for name in ("box_in_features", "box_pooler", "box_head"))


def _learned(model: nn.Module, drawn: nn.Module) -> set[str]:
    """Names of the tensors that are not as they were drawn."""
    before = drawn.state_dict()
    return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


def _is_of_neck(name: str) -> bool:
    return name.startswith("backbone.") and not name.startswith("backbone.bottom_up.")
