"""The ten ToyScenes classes: five shapes times two texture families.

Both halves of a name are needed to tell a class: every shape comes in both textures, every texture on
all shapes. Colour, size, place, light and background never depend on the class.
"""

import numpy as np

SHAPES = ("disk", "square", "triangle", "star", "cross")
TEXTURES = ("striped", "dotted")

# Textures alternate, so that the head and the tail of a long-tailed draw hold both.
CLASS_NAMES = tuple(f"{texture}_{shape}" for shape in SHAPES for texture in TEXTURES)

LONG_TAIL_EXPONENT = 1.5


def shape_of(class_id: int) -> str:
    """The shape, an entry of ``SHAPES``, of class ``class_id`` (an index into ``CLASS_NAMES``)."""
    return SHAPES[class_id // len(TEXTURES)]


def texture_of(class_id: int) -> str:
    """The texture family, an entry of ``TEXTURES``, of class ``class_id``."""
    return TEXTURES[class_id % len(TEXTURES)]


def class_weights(long_tailed: bool) -> np.ndarray:
    """Probability of each class, float64 (10,), summing to 1.

    Uniform, or Pareto-like: class k of ``CLASS_NAMES`` (k = 0..9) has weight (k + 1)**-1.5, so the most
    frequent class is drawn about 32 times as often as the rarest.
    """
    rank = np.arange(1, len(CLASS_NAMES) + 1, dtype=np.float64)
    weights = rank**-LONG_TAIL_EXPONENT if long_tailed else np.ones_like(rank)
    return weights / weights.sum()


def class_quotas(num_images: int, long_tailed: bool) -> np.ndarray:
    """Images per class, int64 (10,), summing to ``num_images``: the weights' shares, largest remainder."""
    shares = class_weights(long_tailed) * num_images
    quotas = np.floor(shares).astype(np.int64)
    missing = num_images - quotas.sum()
    quotas[np.argsort(quotas - shares, kind="stable")[:missing]] += 1
    return quotas


def unit_polygon(shape: str) -> np.ndarray:
    """Outline of a shape, float64 (V, 2), centred at (0, 0), y down, enclosing an area of exactly 1.

    Equal areas keep the number of object pixels from giving the class away.
    """
    outline = _OUTLINES[shape]
    x, y = outline.T
    area = abs(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1))) / 2
    return outline / np.sqrt(area)


def _ring_of_points(count: int, radii: tuple[float, ...]) -> np.ndarray:
    turn = 2 * np.pi * np.arange(count) / count - np.pi / 2
    radius = np.resize(radii, count)
    return np.stack([radius * np.cos(turn), radius * np.sin(turn)], axis=1)


_ARM = 0.36  # half the width of the cross's arms, in units of their length
_OUTLINES = {
    "disk": _ring_of_points(64, (1.0,)),
    "square": np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)], dtype=np.float64),
    "triangle": _ring_of_points(3, (1.0,)),
    "star": _ring_of_points(10, (1.0, 0.47)),
    "cross": np.array(
        [
            (-_ARM, -1), (_ARM, -1), (_ARM, -_ARM), (1, -_ARM), (1, _ARM), (_ARM, _ARM),
            (_ARM, 1), (-_ARM, 1), (-_ARM, _ARM), (-1, _ARM), (-1, -_ARM), (-_ARM, -_ARM),
        ]
    ),
}  # fmt: skip
