"""How the views of an image look: MoCo-v2's standard augmentation, AutoAugment, or one of the two.

Drawing is kept apart from applying: ``draw_look`` gives a plain record of parameters, ``apply_look`` is a
function of image and record. Images are (H, W, 3) uint8 RGB arrays throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from revisit.data.auto_augment import NUM_POLICIES, apply_to_array, operations
from revisit.data.colour import brightness, contrast, gaussian_blur, greyscale, hue, saturation

JITTER = (brightness, contrast, saturation, hue)
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
GREY_PROBABILITY = 0.2


@dataclass(frozen=True)
class StandardLook:
    """MoCo-v2: jitter(.4, .4, .4, .1) p .8, grey p .2, blur sigma U(.1, 2) p .5, flip p .5, in this order."""

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


Look = StandardLook | AutoAugmentLook


def draw_look(policy: str, rng: np.random.Generator, *, grey_probability: float = GREY_PROBABILITY) -> Look:
    """Parameters of one view.

    Args:
        policy: one of ``revisit.config.POLICIES``. ``standard_or_autoaugment`` (the paper's A+) takes
            either with probability 1/2.
        grey_probability: how often a standard look is grey; MoCo-v2's unless told otherwise.
    """
    if policy == "standard_or_autoaugment":
        policy = "standard" if rng.random() < 0.5 else "autoaugment"
    if policy == "standard":
        return _draw_standard(rng, grey_probability)
    if policy == "autoaugment":
        return AutoAugmentLook(
            flip=bool(rng.random() < 0.5),
            policy=int(rng.integers(NUM_POLICIES)),
            probabilities=tuple(rng.random(2).tolist()),
            signs=tuple(rng.integers(2, size=2).tolist()),
        )
    raise ValueError(f"unknown augmentation policy {policy!r}")


def _draw_standard(rng: np.random.Generator, grey_probability: float) -> StandardLook:
    jitter: tuple[tuple[int, float], ...] = ()
    if rng.random() < 0.8:
        factors = (*rng.uniform(0.6, 1.4, size=3).tolist(), float(rng.uniform(-0.1, 0.1)))
        jitter = tuple((int(op), factors[op]) for op in rng.permutation(4))
    return StandardLook(
        jitter=jitter,
        grey=bool(rng.random() < grey_probability),
        blur_sigma=float(rng.uniform(0.1, 2.0)) if rng.random() < 0.5 else 0.0,
        flip=bool(rng.random() < 0.5),
    )


def apply_look(image: np.ndarray, look: Look) -> np.ndarray:
    """The augmented square image, same shape and dtype; ``image`` itself is left alone."""
    if isinstance(look, AutoAugmentLook):
        image = cv2.flip(image, 1) if look.flip else image
        for name, magnitude in operations(look.policy, look.probabilities, look.signs, len(image)):
            image = apply_to_array(image, name, magnitude)
        return image
    for operation, factor in look.jitter:
        image = JITTER[operation](image, factor)
    if look.grey:
        image = greyscale(image)
    if look.blur_sigma:
        image = gaussian_blur(image, look.blur_sigma)
    return cv2.flip(image, 1) if look.flip else image
