"""Images with more than 8 bits a sample: which they are. The core refuses them; a plug-in makes grey levels of them.

``bit_depth`` is a plug-in's: what the values of such images mean, by a run's config; None where nothing says it.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image, UnidentifiedImageError

from revisit.data.images.image_bytes import UnreadableImageError
from revisit.data.images.opening import PNG_MAGIC, TIFF_MAGICS, open_image
from revisit.plugins import load_plugins

from detectron2.config import CfgNode
from fvcore.common.registry import Registry

BITS_TAG = 258  # of TIFF
_COLORS = ("RGB", "RGBA", "RGBX")


class DeepImageError(UnreadableImageError):
    """An image with more than 8 bits a sample that cannot become grey levels."""


DEEP_IMAGES_REGISTRY = Registry("DEEP_IMAGES")
DEEP_IMAGES_REGISTRY.__doc__ = """
What reads images with more than 8 bits a sample: ``DeepImages`` and its subclasses, of which the last counts.
"""


@DEEP_IMAGES_REGISTRY.register()
class DeepImages:
    """Refuses images with more than 8 bits a sample. A plug-in registers a subclass that reads them."""

    KEY = ""  # of a config, that says ``bit_depth``; the flags of weights have it where they learned from such images

    def bit_depth(self, cfg: CfgNode) -> int | None:
        """What ``decode`` needs to know, by a config."""
        return None

    def find_bit_depth(self, records: Sequence[dict]) -> tuple[int, str] | None:
        """The ``bit_depth`` that a sample of the images asks for, and why; None where no image has more than 8 bits.

        Raises:
            UserError: no ``bit_depth`` fits them.
        """
        return None

    def size(self, data: bytes) -> tuple[int, int]:
        """(height, width) in px of a file that PIL cannot open."""
        raise UnidentifiedImageError("neither PIL nor a plug-in can decode it")

    def decode(self, data: bytes, image: Image.Image | None, bit_depth: int | None) -> np.ndarray:
        """(H, W, 3) uint8 of a file that ``is_deep``, whose PIL image may be None; a TIFF upright, others as stored.

        Raises:
            DeepImageError: values that ``bit_depth`` does not hold.
        """
        raise DeepImageError("more than 8 bits a sample: expected 8, or projects/DeepPixels")


def deep_images() -> DeepImages:
    """Who reads images with more than 8 bits a sample: the last that was registered."""
    load_plugins()
    *_, (_, images) = DEEP_IMAGES_REGISTRY
    return images()


def bit_depth(cfg: CfgNode) -> int | None:
    """What the values of images with more than 8 bits a sample mean in a run of ``cfg``."""
    return deep_images().bit_depth(cfg)


def depth_key() -> str:
    """The config key that says it, by which the flags of weights have it too."""
    return deep_images().KEY


def find_bit_depth(records: Sequence[dict]) -> tuple[int, str] | None:
    """See DeepImages."""
    return deep_images().find_bit_depth(records)


def is_deep(data: bytes, image: Image.Image | None) -> bool:
    """Whether a file has more than 8 bits a sample, by its first 26 bytes and PIL's image, of which a header is enough.

    PIL knows no TIFF of colours in floating point, nor any in float64: of these ``image`` is None.
    """
    if data.startswith(PNG_MAGIC):
        return data[24] == 16
    if image is None:
        return data.startswith(TIFF_MAGICS)
    if image.format == "TIFF" and image.mode in _COLORS:
        return image.tag_v2.get(BITS_TAG, (8,))[0] > 8
    # The header of a PGM says what white is, and PIL has made that 65535.
    return image.mode.startswith(("I", "F")) and (image.mode, image.format) != ("I", "PPM")


def open_deep(data: bytes) -> Image.Image | None:
    """As open_image, or None of a TIFF that PIL does not know."""
    try:
        return open_image(data)
    except UnidentifiedImageError:
        if data.startswith(TIFF_MAGICS):
            return None
        raise
