"""Samples of what the core reads as photographs: JPEG, PNG of 8 and 16 bits, WebP and the like, with transparency."""

import numpy as np
from PIL import Image

from projects.Pixels.grey_levels import all_bits, check_values
from projects.Pixels.samples import Samples, with_missing
from revisit.data.images.deep_images import is_deep
from revisit.data.images.opening import open_image
from revisit.data.images.reader import Picture, orientation_of, turned

_GREY = ("1", "L", "LA", "La")
_WITH_ALPHA = ("LA", "La", "RGBA", "RGBa", "PA")
_KIND_OF_PNG, _GREY_OF_PNG = 25, (0, 4)  # the place of a byte, and its values without and with transparency
_TRANSPARENT = "transparency"  # in PIL's info: a colour, or the palette's transparencies


def read_photograph(data: bytes) -> Samples:
    """One channel of grey, or red, green and blue, of 8 or 16 bits. What PNG and WebP call transparency is ``alpha``.

    Raises:
        UnreadableImageError, Exception: see Picture.decode.
    """
    image = open_image(data)
    samples = _deep(data, image) if is_deep(data, image) else _shallow(data, image)
    return with_missing(samples)


def _shallow(data: bytes, image: Image.Image) -> Samples:
    pixels = Picture(data).decode()
    is_grey = image.mode in _GREY or image.mode.startswith("I") or _has_grey_palette(image)
    alpha = None
    if image.mode in _WITH_ALPHA or _TRANSPARENT in image.info:
        alpha = turned(np.asarray(image.convert("RGBA").getchannel("A")), orientation_of(image))
    return Samples(pixels[..., :1] if is_grey else pixels, is_colour=not is_grey, alpha=alpha)


def _has_grey_palette(image: Image.Image) -> bool:
    if image.mode not in ("P", "PA"):
        return False
    colours = np.reshape(image.getpalette("RGB"), (-1, 3))
    return bool((colours == colours[:, :1]).all())


def _deep(data: bytes, image: Image.Image) -> Samples:
    """A PNG of 16 bits a sample, of which PIL keeps but the high bytes where it has several channels."""
    check_values(image, {})
    values = turned(np.atleast_3d(all_bits(data)), orientation_of(image))
    mark = image.info.get(_TRANSPARENT) if values.shape[2] == 1 else None
    is_grey = data[_KIND_OF_PNG] in _GREY_OF_PNG
    return Samples(
        values[..., :1] if is_grey else values[..., 2::-1],
        marked=None if mark is None else values[..., 0] == mark,
        is_colour=not is_grey,
        alpha=values[..., 3] if values.shape[2] == 4 else None,
    )
