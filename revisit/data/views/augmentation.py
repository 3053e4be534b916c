"""How a view looks: the standard augmentation of two-crop methods, AutoAugment's ImageNet policy, or one of the two.

A look is drawn here, as a plain record of parameters; ``augmentation_on_arrays`` and ``augmentation_on_device`` apply
it.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torchvision.transforms import AutoAugment

from revisit.keys import SHARE, declare, one_of

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
GREY_PROBABILITY, BLUR_PROBABILITY = 0.2, 0.5
_torchvision = AutoAugment()
NUM_POLICIES = len(_torchvision.policies)
POLICIES = ("standard", "autoaugment", "standard_or_autoaugment")
declare(
    "VIEWS.POLICY",
    "standard_or_autoaugment",
    "Look of the positives; anchors always have the standard look. The paper's A+ is standard_or_autoaugment.",
    one_of(*POLICIES),
    paper="standard_or_autoaugment",
    read_by="Pretraining",
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


Moves = tuple[tuple[float, float, float], tuple[float, float, float]]


def _rotation(degrees: float, size: int) -> Moves:
    cos, sin, centre = math.cos(math.radians(degrees)), math.sin(math.radians(degrees)), size / 2
    return (cos, -sin, centre * (1 - cos + sin)), (sin, cos, centre * (1 - cos - sin))


# AutoAugment's operations that move pixels, by (magnitude, size): a place (x, y) of the result shows (a x + b y + c) of
# the first row and of the second.
MOVES: dict[str, Callable[[float, int], Moves]] = {
    "ShearX": lambda m, size: ((1.0, m, 0.0), (0.0, 1.0, 0.0)),
    "ShearY": lambda m, size: ((1.0, 0.0, 0.0), (m, 1.0, 0.0)),
    "TranslateX": lambda m, size: ((1.0, 0.0, -float(int(m))), (0.0, 1.0, 0.0)),
    "TranslateY": lambda m, size: ((1.0, 0.0, 0.0), (0.0, 1.0, -float(int(m)))),
    "Rotate": _rotation,
}


@dataclass(frozen=True)
class StandardLook:
    """Jitter(.4, .4, .4, .1) p .8, grey p .2, blur sigma U(.1, 2) p .5, flip p .5, in this order (arXiv:2003.04297)."""

    jitter: tuple[tuple[int, float], ...]  # (operation, factor) in order of application; hue in turns
    grey: bool
    blur_sigma: float  # px; 0 is no blur
    flip: bool


@dataclass(frozen=True)
class AutoAugmentLook:
    """Flip p .5, then one sub-policy of AutoAugment's ImageNet policy: two operations."""

    flip: bool
    policy: int  # which of torchvision's sub-policies
    probabilities: tuple[float, float]  # an operation runs if its number is at most its probability
    signs: tuple[int, int]  # 0 negates a signed magnitude

    def operations(self, size: int) -> list[tuple[str, float]]:
        """The operations that the draw comes to on a square image of ``size`` px, with magnitudes, in order: 0 to 2."""
        result = []
        for drawn, sign, (name, probability, level) in zip(
            self.probabilities, self.signs, _torchvision.policies[self.policy], strict=True
        ):
            if drawn <= probability:
                magnitudes, signed = _levels(size)[name]
                magnitude = 0.0 if level is None else magnitudes[level]
                result.append((name, -magnitude if signed and sign == 0 else magnitude))
        return result


Look = StandardLook | AutoAugmentLook


def shown_place(look: Look, size: int) -> np.ndarray:
    """Which place of a square view of ``size`` px, (x, y, 1), shows at a place of the view with its look: (3, 3)."""
    matrix = np.eye(3)
    if look.flip:
        matrix[0] = -1, 0, size
    for name, magnitude in look.operations(size) if isinstance(look, AutoAugmentLook) else ():
        if name in MOVES:
            matrix = matrix @ np.array([*MOVES[name](magnitude, size), (0.0, 0.0, 1.0)])
    return matrix


def draw_look(
    policy: str,
    rng: np.random.Generator,
    *,
    grey_probability: float = GREY_PROBABILITY,
    blur_probability: float = BLUR_PROBABILITY,
) -> Look:
    """Parameters of one view, by one of POLICIES: ``standard_or_autoaugment``, A+, takes either half of the time."""
    if policy == "standard_or_autoaugment":
        policy = "standard" if rng.random() < 0.5 else "autoaugment"
    if policy == "standard":
        return _draw_standard(rng, grey_probability, blur_probability)
    if policy == "autoaugment":
        return AutoAugmentLook(
            flip=bool(rng.random() < 0.5),
            policy=int(rng.integers(NUM_POLICIES)),
            probabilities=tuple(rng.random(2).tolist()),
            signs=tuple(rng.integers(2, size=2).tolist()),
        )
    raise ValueError(f"unknown augmentation policy {policy!r}")


def _draw_standard(rng: np.random.Generator, grey_probability: float, blur_probability: float) -> StandardLook:
    jitter: tuple[tuple[int, float], ...] = ()
    if rng.random() < 0.8:
        factors = (*rng.uniform(0.6, 1.4, size=3).tolist(), float(rng.uniform(-0.1, 0.1)))
        jitter = tuple((int(op), factors[op]) for op in rng.permutation(4))
    return StandardLook(
        jitter=jitter,
        grey=bool(rng.random() < grey_probability),
        blur_sigma=float(rng.uniform(0.1, 2.0)) if rng.random() < blur_probability else 0.0,
        flip=bool(rng.random() < 0.5),
    )


@functools.cache
def _levels(size: int) -> dict[str, tuple[list[float], bool]]:
    space = _torchvision._augmentation_space(10, (size, size))
    return {name: (levels.double().flatten().tolist(), signed) for name, (levels, signed) in space.items()}
