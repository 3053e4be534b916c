"""Statistics for a batch norm that was folded into a scale and a bias, so that it can be trained again."""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from revisit.checkpoint.convert import BackboneWeights
from revisit.data.images.deep_images import format_of
from revisit.data.sources.catalog import get_records
from revisit.data.sources.records import sample
from revisit.errors import expect
from revisit.evaluation.features import CenterCropDataset, check_not_enlarged
from revisit.modeling.backbone.description import Tensors
from revisit.network.network import Network
from revisit.progress import progress

IMAGE_SIZE = 224  # px
_BATCH = 32


def recalibrate(weights: BackboneWeights, dataset: str) -> BackboneWeights:
    """Give each batch norm the statistics of its input over at most 1,000 images of a data set.

    Scale and bias change with them, so that the network computes what it did: with mean m and variance v of a
    channel, gamma = scale * sqrt(v + eps) and beta = bias + scale * m. Raises UserError for weights not folded.
    """
    folded = weights.description.FOLDED
    is_folded = bool(folded) and all(weights.flags.get(key) == value for key, value in folded.items())
    expect(is_folded, f"--data {dataset}: these weights have batch statistics of their own, and need none")
    records = sample(get_records(dataset))
    images = CenterCropDataset(records, IMAGE_SIZE, format_of(weights.flags, records), replaced=True)
    check_not_enlarged(dataset, IMAGE_SIZE, "the recalibration's image size")
    batches = progress("recalibrating", "batch", DataLoader(images, _BATCH))
    tensors = recalibrated(weights, (batch["image"] for batch in batches))
    flags = {key: value for key, value in weights.flags.items() if key not in folded}
    return weights._replace(
        tensors=tensors, flags=flags, origin=f"{weights.origin}, recalibrated on {len(images)} images of {dataset}"
    )


@torch.no_grad()
def recalibrated(weights: BackboneWeights, batches: Iterable[Tensor]) -> Tensors:
    """The tensors with statistics over ``batches`` of (N, 3, H, W) uint8 RGB images."""
    model = Network.of(weights)
    norms = {name: module for name, module in model.network.named_modules() if isinstance(module, nn.BatchNorm2d)}
    sums = {name: torch.zeros(3, module.num_features, dtype=torch.float64) for name, module in norms.items()}
    for name, module in norms.items():
        module.register_forward_pre_hook(partial(_add_moments, sums[name]))
    for images in batches:
        model(images if weights.flags["INPUT.FORMAT"] == "RGB" else images.flip(1))
    tensors = dict(weights.tensors)
    for name, module in norms.items():
        tensors |= {f"{name}.{key}": value for key, value in _with_statistics(module, sums[name]).items()}
    return tensors


def _with_statistics(norm: nn.BatchNorm2d, sums: Tensor) -> Tensors:
    """The tensors of a folded batch norm with the statistics that ``sums`` are of."""
    count, total, squares = sums
    average = total / count
    variance = (squares / count - average**2).clamp(min=0)
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    tensors = {
        "weight": scale * (variance + norm.eps).sqrt(),
        "bias": norm.bias.double() + scale * (average - norm.running_mean.double()),
        "running_mean": average,
        "running_var": variance,
    }
    return {key: value.float() for key, value in tensors.items()}


def _add_moments(sums: Tensor, module: nn.Module, inputs: tuple[Tensor]) -> None:
    """Add (3, C) of an (N, C, H, W) input: of each channel how many values, their sum and that of their squares."""
    values = inputs[0].double().transpose(0, 1).flatten(1)
    count = torch.full((len(values),), values.shape[1], dtype=torch.float64)
    sums += torch.stack([count, values.sum(1), values.square().sum(1)])
