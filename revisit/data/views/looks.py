"""How a view looks. VIEWS.POLICY names an entry of LOOK_REGISTRY: how the looks of the positives are drawn.

An entry is a function of a config, and returns a function of a numpy generator, which draws the look of one view. A
look is plain values; ``apply`` gives it to a view. A plug-in registers its own (docs/extending.md: A look).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torchvision.transforms import AutoAugment

from revisit.data.images.deep_images import pixel_format
from revisit.data.views.operations import JITTER, MOVES, apply_operation, flip, gaussian_blur, greyscale
from revisit.keys import SHARE, SWITCH, Decision, Facts, declare, is_read, registered

from detectron2.config import CfgNode
from fvcore.common.registry import Registry

LOOK_REGISTRY = Registry("LOOK")
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)

OF_COLOURS = ("standard", "autoaugment", "standard_or_autoaugment")  # looks for red, green and blue


def look_of_images(cfg: CfgNode, facts: Facts) -> Decision | None:
    """A plug-in's look ``channels`` in place of one for colours, where the images' channels are others."""
    pixels = pixel_format(cfg)
    fits = pixels.is_rgb or cfg.VIEWS.POLICY not in OF_COLOURS
    if fits or not is_read(cfg, facts.key):
        return None
    why = f"VIEWS.POLICY {cfg.VIEWS.POLICY} is for red, green and blue, and images have {' '.join(pixels.channels)}"
    return Decision("channels", why)


declare(
    "VIEWS.POLICY",
    "standard_or_autoaugment",
    "Look of the positives: standard, autoaugment, or standard_or_autoaugment, the paper's A+. Anchors always have the "
    "standard look. Of images whose channels are not RGB anchors and positives have the look channels.",
    registered(LOOK_REGISTRY, "LOOK_REGISTRY"),
    paper="standard_or_autoaugment",
    read_by="Pretraining",
    resolve=look_of_images,
    after="INPUT.CHANNELS",
)
declare("VIEWS.GREY_PROBABILITY", 0.2, "How often a standard look is grey.", SHARE, paper=0.2, read_by="Pretraining")
declare(
    "VIEWS.BLUR_PROBABILITY",
    0.5,
    "How often a standard look is blurred, with a sigma of up to 2 px in views of any size: in small views it can hide "
    "the texture (docs/results/learning-faster.md).",
    SHARE,
    paper=0.5,
    read_by="Pretraining",
)
declare(
    "VIEWS.QUARTER_TURNS",
    False,
    "Views turn by 0, 90, 180 or 270 degrees before they get their looks: for images without an up, as from a "
    "satellite or a microscope.",
    SWITCH,
    read_by="Pretraining",
)


class Look:
    """The look of one view. Subclasses are frozen dataclasses of what was drawn."""

    def apply(self, image: np.ndarray) -> np.ndarray:
        """The (S, S, C) uint8 view, RGB but for ``channels``, with this look; ``image`` stays as it is."""
        raise NotImplementedError

    def source_points(self, size: int) -> np.ndarray:
        """(3, 3): which point (x, y, 1) of a plain view of ``size`` px is shown at a point of the view with this look.

        A look that moves pixels overrides it: methods that learn from boxes in views ask.
        """
        return np.eye(3)


DrawLook = Callable[[np.random.Generator], Look]


@dataclass(frozen=True)
class StandardLook(Look):
    """Jitter, grey, blur, flip, in this order (arXiv:2003.04297)."""

    jitter: tuple[tuple[int, float], ...]  # (place in JITTER, factor) in order of application; hue in turns
    grey: bool
    blur_sigma: float  # px; 0 is no blur
    flip: bool

    def apply(self, image: np.ndarray) -> np.ndarray:
        for operation, factor in self.jitter:
            image = JITTER[operation](image, factor)
        if self.grey:
            image = greyscale(image)
        if self.blur_sigma:
            image = gaussian_blur(image, self.blur_sigma)
        return flip(image) if self.flip else image

    def source_points(self, size: int) -> np.ndarray:
        return flipped_points(size) if self.flip else np.eye(3)


@dataclass(frozen=True)
class AutoAugmentLook(Look):
    """A flip, then one sub-policy of AutoAugment's ImageNet policy: two operations (arXiv:1805.09501)."""

    flip: bool
    policy: int  # which of POLICIES
    probabilities: tuple[float, float]  # an operation runs if its number is at most its probability
    signs: tuple[int, int]  # 0 negates a signed magnitude

    def apply(self, image: np.ndarray) -> np.ndarray:
        image = flip(image) if self.flip else image
        for name, magnitude in self.operations(len(image)):
            image = apply_operation(image, name, magnitude)
        return image

    def source_points(self, size: int) -> np.ndarray:
        points = flipped_points(size) if self.flip else np.eye(3)
        for name, magnitude in self.operations(size):
            if name in MOVES:
                points = points @ np.array([*MOVES[name](magnitude, size), (0.0, 0.0, 1.0)])
        return points

    def operations(self, size: int) -> list[tuple[str, float]]:
        """The operations that the draw comes to on a square image of ``size`` px, with magnitudes, in order: 0 to 2."""
        result = []
        drawn = zip(self.probabilities, self.signs, POLICIES[self.policy], strict=True)
        for number, sign, (name, probability, level) in drawn:
            if number <= probability:
                magnitude = 0.0 if level is None else _magnitudes(size)[name][level]
                is_negative = sign == 0 and name in SIGNED
                result.append((name, -magnitude if is_negative else magnitude))
        return result


@dataclass(frozen=True)
class TurnedLook(Look):
    """Another look of the view after quarter turns against the clock."""

    turns: int
    look: Look

    def apply(self, image: np.ndarray) -> np.ndarray:
        turned = np.rot90(image, self.turns)
        return self.look.apply(np.ascontiguousarray(turned))

    def source_points(self, size: int) -> np.ndarray:
        turn = np.array([[0.0, -1.0, size], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        return np.linalg.matrix_power(turn, self.turns) @ self.look.source_points(size)


def flipped_points(size: int) -> np.ndarray:
    """``Look.source_points`` of a flip."""
    points = np.eye(3)
    points[0] = -1, 0, size
    return points


def anchor_look(cfg: CfgNode) -> DrawLook:
    """The standard look; of images whose channels are not RGB that of VIEWS.POLICY."""
    return _perhaps_turned(cfg, "standard" if pixel_format(cfg).is_rgb else cfg.VIEWS.POLICY)


def positive_look(cfg: CfgNode) -> DrawLook:
    """That of VIEWS.POLICY."""
    return _perhaps_turned(cfg, cfg.VIEWS.POLICY)


def _perhaps_turned(cfg: CfgNode, policy: str) -> DrawLook:
    draw = LOOK_REGISTRY.get(policy)(cfg)
    return functools.partial(draw_turned, draw=draw) if cfg.VIEWS.QUARTER_TURNS else draw


@LOOK_REGISTRY.register()
def standard(cfg: CfgNode) -> DrawLook:
    """Jitter (.4, .4, .4, .1) p .8, grey p VIEWS.GREY_PROBABILITY, blur p VIEWS.BLUR_PROBABILITY, flip p .5."""
    views = cfg.VIEWS
    return functools.partial(draw_standard, grey=views.GREY_PROBABILITY, blur=views.BLUR_PROBABILITY)


@LOOK_REGISTRY.register()
def autoaugment(cfg: CfgNode) -> DrawLook:
    """Flip p .5, then AutoAugment's ImageNet policy."""
    return draw_autoaugment


@LOOK_REGISTRY.register()
def standard_or_autoaugment(cfg: CfgNode) -> DrawLook:
    """A+: either of the two half of the time (paper, Section 4)."""
    return functools.partial(draw_either, first=standard(cfg), second=autoaugment(cfg))


def draw_turned(rng: np.random.Generator, draw: DrawLook) -> TurnedLook:
    """0 to 3 quarter turns, then what ``draw`` draws."""
    return TurnedLook(int(rng.integers(4)), draw(rng))


def draw_standard(rng: np.random.Generator, grey: float, blur: float) -> StandardLook:
    """A standard look, grey and blurred with these probabilities; sigma is U(0.1, 2) px."""
    jitter: tuple[tuple[int, float], ...] = ()
    if rng.random() < 0.8:
        factors = [*rng.uniform(0.6, 1.4, size=3).tolist(), float(rng.uniform(-0.1, 0.1))]
        order = rng.permutation(4).tolist()
        jitter = tuple((operation, factors[operation]) for operation in order)
    return StandardLook(
        jitter=jitter,
        grey=bool(rng.random() < grey),
        blur_sigma=float(rng.uniform(0.1, 2.0)) if rng.random() < blur else 0.0,
        flip=bool(rng.random() < 0.5),
    )


def draw_autoaugment(rng: np.random.Generator) -> AutoAugmentLook:
    """A look of one of AutoAugment's sub-policies."""
    return AutoAugmentLook(
        flip=bool(rng.random() < 0.5),
        policy=int(rng.integers(len(POLICIES))),
        probabilities=tuple(rng.random(2).tolist()),
        signs=tuple(rng.integers(2, size=2).tolist()),
    )


def draw_either(rng: np.random.Generator, first: DrawLook, second: DrawLook) -> Look:
    """A look of either distribution, half of the time each."""
    draw = first if rng.random() < 0.5 else second
    return draw(rng)


POLICIES = AutoAugment().policies  # torchvision's table of ((operation, probability, level), the second one)
SIGNED = {*MOVES, "Brightness", "Color", "Contrast", "Sharpness"}  # whose magnitude may be negative


@functools.cache
def _magnitudes(size: int) -> dict[str, list[float]]:
    """Magnitudes of the ten levels of an operation on a square image of ``size`` px."""
    longest = 150 / 331 * size  # px, as AutoAugment's translations on images of 331 px
    highest = {"ShearX": 0.3, "ShearY": 0.3, "TranslateX": longest, "TranslateY": longest, "Rotate": 30.0}
    highest |= dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), 0.9)
    magnitudes = {name: _ten_levels(0.0, high) for name, high in highest.items()}
    magnitudes["Solarize"] = _ten_levels(255.0, 0.0)
    magnitudes["Posterize"] = [8.0, 8.0, 7.0, 7.0, 6.0, 6.0, 5.0, 5.0, 4.0, 4.0]  # bits
    return magnitudes


def _ten_levels(first: float, last: float) -> list[float]:
    return torch.linspace(first, last, 10).tolist()  # in float32, as torchvision's
