"""The looks of a whole batch of views at once, on the model's device (DATALOADER.AUGMENT_ON_DEVICE).

A worker then only decodes, cuts and resizes; the parameters that it draws travel as one small record a view.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d
from torchvision.transforms.v2 import functional as F

from revisit.data.to_device import to_device
from revisit.data.views.looks import OF_COLOURS, AutoAugmentLook, Look, StandardLook
from revisit.data.views.mapper import VIEW_MAPPER_REGISTRY, ViewMapper, Views
from revisit.data.views.operations import MOVES
from revisit.errors import expect
from revisit.keys import SWITCH, declare

from detectron2.config import CfgNode

OPERATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {  # of AutoAugment: torchvision's on uint8
    **{name: lambda images, m, move=move: _move(images, *move(m, images.shape[-1])) for name, move in MOVES.items()},
    "Brightness": lambda images, m: F.adjust_brightness(images, 1 + m),
    "Color": lambda images, m: F.adjust_saturation(images, 1 + m),
    "Contrast": lambda images, m: F.adjust_contrast(images, 1 + m),
    "Sharpness": lambda images, m: _sharpen(images, 1 + m),
    "Posterize": lambda images, m: F.posterize(images, int(m)),
    "Solarize": lambda images, m: F.solarize(images, m),
    "Invert": lambda images, m: F.invert(images),
    "AutoContrast": lambda images, m: F.autocontrast(images),
    "Equalize": lambda images, m: F.equalize(images),
}
NAMES = tuple(OPERATIONS)
NONE = -1
RECORD = np.dtype([
    ("flip", "?"),
    ("operations", "i1", 2),  # of AutoAugment, indices of NAMES, in order, or NONE
    ("magnitudes", "f4", 2),
    ("order", "i1", 4),  # of the jitter, indices of _JITTER, or NONE
    ("factors", "f4", 4),  # in the same order
    ("grey", "?"),
    ("blur_sigma", "f4"),
])  # fmt: skip
RADIUS = 6  # px, three times the largest sigma


declare(
    "DATALOADER.AUGMENT_ON_DEVICE",
    False,
    "Workers decode, cut and resize; colours, blur, AutoAugment and flips are the model's device's, batched.",
    SWITCH,
    may_change=True,
    read_by="Pretraining",
)


@dataclass(frozen=True)
class MapperWithoutLooks(ViewMapper):
    """Cuts and resizes; the looks that it draws are applied to the whole batch by the model's device."""

    def fill(self, view: np.ndarray, image: np.ndarray, box: np.ndarray, look: Look) -> None:
        view[...] = self.resize(image, box, len(view))

    def deferred(self, views: list[Views]) -> "LooksToApply":
        records = {name: np.empty((len(views), *shape[:-3]), RECORD) for name, shape in self.shapes.items()}
        for n, of_image in enumerate(views):
            anchor, positive, *small = of_image["looks"]
            records["anchor"][n] = record_of(anchor, self.large_size)
            records["positive"][n] = record_of(positive, self.large_size)
            for place, look in enumerate(small):
                records["small"][n, place] = record_of(look, self.small_size)
        return LooksToApply(records)


@dataclass(frozen=True)
class LooksToApply:
    """The looks of a batch, which its views do not have yet."""

    records: dict[str, np.ndarray]  # by name of the views: (B,) of RECORD; (B, N) of the small ones

    def __call__(self, batch: dict, device: torch.device | str) -> dict[str, Tensor]:
        """The views of the batch on ``device``, with their looks; of uint8 and of the same shapes."""
        finished = {}
        for name, looks in self.records.items():
            views = to_device(batch[name], device)
            flat = views.reshape(-1, *views.shape[-3:])
            finished[name] = apply_looks(flat, looks.reshape(-1)).view(views.shape)
        return finished


@VIEW_MAPPER_REGISTRY.register()
def looks_on_device(cfg: CfgNode) -> type[ViewMapper] | None:
    """MapperWithoutLooks with DATALOADER.AUGMENT_ON_DEVICE. Raises UserError for a policy that the device lacks."""
    if not cfg.DATALOADER.AUGMENT_ON_DEVICE:
        return None
    policy = cfg.VIEWS.POLICY
    wrong = f"DATALOADER.AUGMENT_ON_DEVICE True does not know VIEWS.POLICY {policy}"
    expect(policy in OF_COLOURS, f"{wrong}: expected one of {', '.join(OF_COLOURS)}, or False")
    expect(not cfg.VIEWS.QUARTER_TURNS, "DATALOADER.AUGMENT_ON_DEVICE True does not know VIEWS.QUARTER_TURNS True")
    return MapperWithoutLooks


def record_of(look: AutoAugmentLook | StandardLook, size: int) -> np.ndarray:
    """A look of a square view of ``size`` px as a RECORD, (), with its draws of operations decided."""
    record = np.zeros((), RECORD)
    record["flip"] = look.flip
    record["operations"] = NONE
    record["order"] = NONE
    if isinstance(look, AutoAugmentLook):
        for n, (name, magnitude) in enumerate(look.operations(size)):
            record["operations"][n] = NAMES.index(name)
            record["magnitudes"][n] = magnitude
        return record
    for n, (operation, factor) in enumerate(look.jitter):
        record["order"][n] = operation
        record["factors"][n] = factor
    record["grey"] = look.grey
    record["blur_sigma"] = look.blur_sigma
    return record


def apply_looks(images: Tensor, looks: np.ndarray) -> Tensor:
    """The augmented views: ``Look.apply`` of every one, within what rounding once instead of at each step, and the
    blur's tails, change.

    Args:
        images: (M, 3, S, S) uint8 RGB.
        looks: (M,) of RECORD.

    Returns:
        (M, 3, S, S) uint8 on the device of ``images``; nothing waits for that device.
    """
    images = torch.where(_column(looks["flip"], images), images.flip(-1), images)
    for step in range(2):
        names, magnitudes = looks["operations"][:, step], looks["magnitudes"][:, step]
        drawn = set(zip(names.tolist(), magnitudes.tolist(), strict=True))
        for name, magnitude in sorted(drawn):
            if name == NONE:
                continue
            alike = (names == name) & (magnitudes == np.float32(magnitude))
            rows, operation = _rows(alike, images), OPERATIONS[NAMES[name]]
            images[rows] = operation(images[rows], magnitude)
    has_jitter = looks["order"][:, 0] != NONE
    standard = has_jitter | looks["grey"] | (looks["blur_sigma"] > 0)
    if standard.any():
        rows = _rows(standard, images)
        finished = _standard(images[rows].float(), looks[standard])
        images[rows] = finished.round_().to(torch.uint8)
    return images


def _standard(images: Tensor, looks: np.ndarray) -> Tensor:
    for step in range(4):
        for operation, jitter in enumerate(_JITTER):
            chosen = looks["order"][:, step] == operation
            if chosen.any():
                rows = _rows(chosen, images)
                factors = _column(looks["factors"][chosen, step], images)
                images[rows] = jitter(images[rows], factors)
    images = torch.where(_column(looks["grey"], images), _luma(images), images)
    blurred = looks["blur_sigma"] > 0
    if blurred.any():
        rows = _rows(blurred, images)
        sigmas = _column(looks["blur_sigma"][blurred], images)[:, 0, 0]
        images[rows] = _gaussian_blur(images[rows], sigmas)
    return images


def _rows(chosen: np.ndarray, images: Tensor) -> Tensor:
    """The indices of a mask that is known on the host: no device has to count it."""
    return to_device(np.flatnonzero(chosen), images.device)


def _column(values: np.ndarray, images: Tensor) -> Tensor:
    return to_device(np.ascontiguousarray(values), images.device)[:, None, None, None]


def _move(images: Tensor, column: tuple[float, float, float], row: tuple[float, float, float]) -> Tensor:
    """A point (x, y) shows the pixel nearest to (a x + b y + c) of ``column`` and of ``row``; black from outside.

    By PIL's arithmetic in 1/65536 px: torchvision's for tensors is off by a pixel here and there.
    """
    size = images.shape[-1]
    places = torch.arange(size, device=images.device)
    x, y = _shown_places(places, *column), _shown_places(places, *row)
    last = size - 1
    inside = (x >= 0) & (x <= last) & (y >= 0) & (y <= last)
    return images[..., y.clamp(0, last), x.clamp(0, last)] * inside


def _shown_places(places: Tensor, a: float, b: float, c: float) -> Tensor:
    """(S, S) int64: a x + b y + c of the middle of each pixel, rounded down."""
    of_columns = _fixed(a) * places
    of_rows = _fixed(b) * places[:, None]
    return (of_columns + of_rows + _fixed(c + (a + b) / 2)) >> 16


def _sharpen(images: Tensor, factor: float) -> Tensor:
    """torchvision's, whose window of weights is made on the host, so that it would wait for the device: past 1 away
    from the mean of 3 x 3 px, of which the middle one counts five times. The border stays."""
    if images.shape[-1] < 3:
        return images
    out = images.float()
    inner = out[..., 1:-1, 1:-1]
    blurred = (avg_pool2d(out, 3, stride=1, divisor_override=1) + 4 * inner).div_(13).round_()
    inner.add_(blurred - inner, alpha=1 - factor)
    return out.clamp_(0, 255).to(torch.uint8)


def _fixed(value: float) -> int:
    return math.floor(value * 65536 + 0.5)


# What follows is float, values in 0..255, factors (n, 1, 1, 1).


def _luma(images: Tensor) -> Tensor:
    return F.rgb_to_grayscale(images, num_output_channels=3)


def _blend(images: Tensor, base: Tensor | float, factor: Tensor) -> Tensor:
    return (base + factor * (images - base)).clamp_(0, 255)


def _hue(images: Tensor, turns: Tensor) -> Tensor:
    """HSV's hue moved, by the closed form of its way back: value - chroma * min(k, 4 - k) clamped to (0, 1)."""
    red, green, blue = images.unbind(1)
    value = images.amax(1)
    chroma = value - images.amin(1)
    is_red, is_green = value == red, value == green
    sector = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
    start = torch.where(is_red, 0.0, torch.where(is_green, 2.0, 4.0))
    hue = start + sector / chroma.clamp(min=1e-3) + 6 * turns[:, 0]  # in sixths of the circle
    channels = []
    for n in (5, 3, 1):
        k = (hue + n) % 6
        lacking = torch.minimum(k, 4 - k).clamp(0, 1)
        channels.append(value - chroma * lacking)
    return torch.stack(channels, dim=1)


def _gaussian_blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Blurred by sigma (n, 1) px: two products with a band of weights for each image, its border mirrored."""
    size = images.shape[-1]
    offsets = torch.arange(-RADIUS, RADIUS + 1, device=images.device)
    weights = (-(offsets**2) / (2 * sigma**2)).exp()
    weights = weights / weights.sum(1, keepdim=True)  # (n, taps)
    period = max(1, 2 * size - 2)
    places = torch.arange(size, device=images.device)
    sources = (places[:, None] + offsets) % period  # (size, taps)
    sources = torch.minimum(sources, period - sources).clamp_(max=size - 1)
    band = images.new_zeros(len(images), size, size)
    of_images = sources.expand(len(images), -1, -1)
    of_places = weights[:, None].expand(-1, size, -1)
    band.scatter_add_(2, of_images, of_places)
    band = band[:, None]
    return band @ images @ band.transpose(2, 3)


_JITTER: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda images, factor: _blend(images, 0.0, factor),
    lambda images, factor: _blend(images, _luma(images).mean(dim=(1, 2, 3), keepdim=True), factor),
    lambda images, factor: _blend(images, _luma(images), factor),
    _hue,
)
