"""What each operation of a look does to the pixels, against torchvision on PIL images or float64 arithmetic."""

import colorsys

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import functional as TF

from revisit.data.augmentation import BRIGHTNESS, CONTRAST, HUE, SATURATION, StandardLook
from revisit.data.augmentation_on_arrays import apply_look

SIZE = 48
PLAIN = StandardLook(jitter=(), grey=False, blur_sigma=0.0, flip=False)
FACTORS = [0.6, 0.83, 1.0, 1.17, 1.4]
TURNS = [-0.1, -0.037, 0.0, 0.05, 0.1]


def noise():
    return np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)


def gradients():
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    return (np.stack([y, x, x * y], axis=-1) * 255).astype(np.uint8)


IMAGES = {
    "noise": noise(),
    "gradients": gradients(),
    "pastel": noise() // 8 + 150,
    "grey": np.repeat(gradients()[..., :1], 3, axis=-1),
    "black": np.zeros((5, 7, 3), np.uint8),
    "white": np.full((7, 5, 3), 255, np.uint8),
}
every_image = pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)


def look(**changes):
    return StandardLook(**{**vars(PLAIN), **changes})


def jittered(image, operation, factor):
    return apply_look(image, look(jitter=((operation, factor),)))


def distance(one, other):
    """Largest difference, in grey levels."""
    return np.abs(np.asarray(one, dtype=float) - np.asarray(other, dtype=float)).max()


@every_image
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(
    "operation, reference",
    [(BRIGHTNESS, TF.adjust_brightness), (CONTRAST, TF.adjust_contrast), (SATURATION, TF.adjust_saturation)],
)
def test_jitter_is_torchvisions_within_a_grey_level(image, operation, reference, factor):
    assert distance(jittered(image, operation, factor), reference(Image.fromarray(image), factor)) <= 1


def turned_hue(image, turns):
    """Hue rotation in float64, one pixel at a time."""
    turned = np.empty(image.shape)
    for place in np.ndindex(image.shape[:2]):
        h, s, v = colorsys.rgb_to_hsv(*(image[place] / 255.0))
        turned[place] = colorsys.hsv_to_rgb((h + turns) % 1.0, s, v)
    return 255 * turned


@every_image
@pytest.mark.parametrize("turns", TURNS)
def test_hue_is_the_exact_rotation_within_a_grey_level(image, turns):
    # torchvision rounds hue and saturation to 8 bits on the way: up to 14 levels off on noise.
    assert distance(jittered(image, HUE, turns), turned_hue(image, turns)) <= 1


@every_image
def test_grey_is_pils_within_a_grey_level(image):
    grey = apply_look(image, look(grey=True))
    assert np.array_equal(grey[..., 0], grey[..., 1]) and np.array_equal(grey[..., 0], grey[..., 2])
    assert distance(grey, Image.fromarray(image).convert("L").convert("RGB")) <= 1


def gaussian_blur(image, sigma):
    """Separable Gaussian in float64, cut at six sigma, the border mirrored."""
    radius = int(np.ceil(6 * sigma))
    weights = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    size = len(image)
    padded = np.pad(image.astype(float), ((radius, radius), (radius, radius), (0, 0)), mode="reflect")
    rows = sum(weight * padded[n : n + size] for n, weight in enumerate(weights))
    return sum(weight * rows[:, n : n + size] for n, weight in enumerate(weights))


@pytest.mark.parametrize("sigma", [0.1, 0.3, 0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("name", ["noise", "gradients", "pastel"])
def test_blur_is_the_gaussian_within_two_grey_levels(name, sigma):
    blurred = apply_look(IMAGES[name], look(blur_sigma=sigma))
    assert distance(blurred, gaussian_blur(IMAGES[name], sigma)) <= 2


@every_image
def test_flip_mirrors_left_and_right_and_the_plain_look_changes_nothing(image):
    assert np.array_equal(apply_look(image, look(flip=True)), image[:, ::-1])
    assert np.array_equal(apply_look(image, PLAIN), image)


def test_operations_run_in_the_order_of_the_look():
    image = noise()
    steps = [
        *(look(jitter=(step,)) for step in [(CONTRAST, 1.4), (HUE, 0.08), (BRIGHTNESS, 0.7), (SATURATION, 1.3)]),
        look(grey=True),
        look(blur_sigma=1.2),
        look(flip=True),
    ]
    one_by_one = image
    for step in steps:
        one_by_one = apply_look(one_by_one, step)
    jitter = tuple(step.jitter[0] for step in steps[:4])
    together = StandardLook(jitter=jitter, grey=True, blur_sigma=1.2, flip=True)
    assert np.array_equal(apply_look(image, together), one_by_one)

    backwards = StandardLook(jitter=jitter[::-1], grey=True, blur_sigma=1.2, flip=True)
    assert not np.array_equal(apply_look(image, backwards), one_by_one)
