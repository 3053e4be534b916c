"""How the views of an image look: MoCo-v2's standard augmentation, AutoAugment, or one of the two.

Drawing is kept apart from applying: ``draw_look`` gives a plain record of parameters, ``apply_look`` is a
function of image and record. Images are (H, W, 3) uint8 RGB arrays throughout.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image
from torchvision.transforms import AutoAugment

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


class _DrawnAutoAugment(AutoAugment):
    """torchvision's AutoAugment with parameters that were drawn elsewhere."""

    look: AutoAugmentLook

    def get_params(self, transform_num: int) -> tuple[int, tuple[float, float], tuple[int, int]]:
        return self.look.policy, self.look.probabilities, self.look.signs

    @functools.cache  # noqa: B019 - the one instance lives as long as the process
    def _augmentation_space(self, num_bins: int, image_size: tuple[int, int]) -> dict:
        # torchvision makes these 14 tables anew for every image, a quarter of AutoAugment's time at 64 px.
        return super()._augmentation_space(num_bins, image_size)


_auto_augment = _DrawnAutoAugment()
NUM_POLICIES = len(_auto_augment.policies)


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
    """The augmented image, same shape and dtype; ``image`` itself is left alone."""
    if isinstance(look, AutoAugmentLook):
        if look.flip:
            image = cv2.flip(image, 1)
        _auto_augment.look = look
        return np.asarray(_auto_augment(Image.fromarray(image)))
    for operation, factor in look.jitter:
        image = _JITTER[operation](image, factor)
    if look.grey:
        image = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    if look.blur_sigma:
        image = cv2.GaussianBlur(image, (0, 0), look.blur_sigma)
    return cv2.flip(image, 1) if look.flip else image


def _blend_table(factor: float, base: float) -> np.ndarray:
    """256-entry table of ``base + factor * (value - base)``, clipped and truncated as PIL's blend does."""
    return np.clip(base + factor * (np.arange(256) - base), 0, 255).astype(np.uint8)


def _brightness(image: np.ndarray, factor: float) -> np.ndarray:
    return cv2.LUT(image, _blend_table(factor, 0.0))


def _contrast(image: np.ndarray, factor: float) -> np.ndarray:
    mean_grey = int(cv2.mean(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))[0] + 0.5)
    return cv2.LUT(image, _blend_table(factor, mean_grey))


def _saturation(image: np.ndarray, factor: float) -> np.ndarray:
    grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return cv2.addWeighted(image, factor, grey, 1.0 - factor, 0.0)


def _hue(image: np.ndarray, turns: float) -> np.ndarray:
    # In float: HSV in uint8, as PIL does it, is off by up to 10 grey levels, and hardly faster.
    hsv = cv2.cvtColor(image.astype(np.float32), cv2.COLOR_RGB2HSV)
    hsv[..., 0] += 360.0 * (turns % 1.0)  # OpenCV wraps angles above 360 degrees, not those below 0
    return cv2.convertScaleAbs(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB))


_JITTER = {BRIGHTNESS: _brightness, CONTRAST: _contrast, SATURATION: _saturation, HUE: _hue}
