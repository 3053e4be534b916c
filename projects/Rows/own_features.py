"""What a probe looks at: the maps of a backbone; of a start with a neck or a box head of its own, what they become.

A neck is what stands between backbone and heads, such as a pyramid.

Which parts are a start's own follows from its tensors: they are not those that the same seed draws.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import roi_align

from revisit.errors import expect
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
    before = drawn.state_dict()
    learned = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    of_neck = {name for name in learned if name.startswith("backbone.") and not name.startswith("backbone.bottom_up.")}
    has_neck = whole is not network and bool(of_neck)
    if _has_head(model) and any(name.startswith("roi_heads.box_head.") for name in learned):
        title = "neck and box head" if has_neck else "box head"
        return Features(title, partial(_of_head, model))
    if has_neck:
        return Features("neck", partial(features_of, whole))
    return Features(BACKBONE, partial(features_of, network))


def head_features(model: nn.Module) -> Features:
    """The features of a finetuned detector's box head. Raises UserError where it has none."""
    name = type(model).__name__
    expect(_has_head(model), f"{name} has no box head of two stages: expected a Faster or Mask R-CNN")
    return Features("box head", partial(_of_head, model))


def features_of(network: nn.Module, images: Tensor, boxes: Tensor) -> Tensor:
    """(n, C): ``of_maps`` of all maps of a backbone, or of a network that also normalises its images."""
    strides = {name: shape.stride for name, shape in network.output_shape().items()}
    return of_maps(network(images), strides, boxes)


def of_maps(maps: Mapping[str, Tensor], strides: Mapping[str, int], boxes: Tensor) -> Tensor:
    """(n, C): means of boxes (n, 4) px over every map, of unit length in each. A map's cell n begins at n ``strides``
    px, whatever the image's size, as in a detector's RoIAlign."""
    rows = []
    for name, stride in strides.items():
        cells = roi_align(maps[name], [boxes], (3, 3), 1 / stride, sampling_ratio=2, aligned=True)
        means = cells.mean(dim=(2, 3))
        rows.append(F.normalize(means, dim=1))
    return torch.cat(rows, dim=1)


def _of_head(model: nn.Module, images: Tensor, boxes: Tensor) -> Tensor:
    """(n, C) what the classifier of a two-stage detector gets for these boxes."""
    heads = model.roi_heads
    maps = model.backbone(images)
    given = [maps[name] for name in heads.box_in_features]
    pooled = heads.box_pooler(given, [Boxes(boxes)])
    return heads.box_head(pooled).flatten(start_dim=1)


def _has_head(model: nn.Module) -> bool:
    """Whether there is a box head of Detectron2's StandardROIHeads."""
    heads = getattr(model, "roi_heads", None)
    return all(hasattr(heads, name) for name in ("box_in_features", "box_pooler", "box_head"))
