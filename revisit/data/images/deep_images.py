"""Images that are no photographs of 8 bits a sample: which they are. The core refuses them; a plug-in reads them.

What their values mean is a PixelFormat: by a run's config, by the flags of weights or of a table, or by the images.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from revisit.data.images.image_bytes import DeepImageError
from revisit.data.images.opening import PNG_MAGIC, TIFF_MAGICS, open_image
from revisit.data.images.pixel_format import PHOTOGRAPHS, PixelFormat
from revisit.data.images.tiff_tags import (
    BITS,
    COMPRESSION,
    FORMAT,
    NOT_COMPRESSED,
    check_bands,
    leaves_out_parts,
    lies_in_planes,
    tags_of,
)
from revisit.errors import expect
from revisit.keys import declaration, value_of
from revisit.plugins import load_plugins

from detectron2.config import CfgNode
from fvcore.common.registry import Registry

_STATISTICS = ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD")  # in grey levels; the mean is what pixels without data become
_COLORS = ("RGB", "RGBA", "RGBX")
Flags = dict[str, Any]  # of weights, of a table or of a config, by full key
_SIGNED = 2  # a format of a TIFF's samples


DEEP_IMAGES_REGISTRY = Registry("DEEP_IMAGES")
DEEP_IMAGES_REGISTRY.__doc__ = """
What reads images with more than 8 bits a sample: ``DeepImages`` and its subclasses, of which the last counts.
"""


@DEEP_IMAGES_REGISTRY.register()
class DeepImages:
    """Refuses images with more than 8 bits a sample. A plug-in registers a subclass that reads them."""

    KEYS: tuple[str, ...] = ()  # of a config; the flags of weights and tables of such images have them too
    SUFFIXES: frozenset[str] = frozenset()  # of what ``images_among`` takes, in lower case, with a dot

    def format_of(self, values: Flags) -> PixelFormat:
        """By values of a config or flags, by full key."""
        return PHOTOGRAPHS

    def flags_of(self, pixels: PixelFormat) -> Flags:
        """Values of KEYS that say a format again, plain ones; {} of photographs of 8 bits."""
        return {}

    def find(self, records: Sequence[dict]) -> Flags:
        """Flags that a sample of the images asks for: values of KEYS, and of channels the statistics of their pixels.
        Raises UserError where no format fits them."""
        return {}

    def images_among(self, files: Mapping[str, list[str]], alone: bool) -> dict[str, list[str]]:
        """By suffix, what this reads of files that the core does not; ``alone``: a folder has no other images."""
        return {}

    def read(self, data: bytes, record: dict, pixels: PixelFormat) -> np.ndarray:
        """(H, W, C) uint8 of a record whose format is not ``of_photographs``; ``data`` are the bytes of its file.

        Raises:
            DeepImageError: other channels, or values that ``pixels`` does not hold.
        """
        raise DeepImageError("images of several channels need projects/Pixels")

    def without_data(self, data: bytes, record: dict, pixels: PixelFormat) -> np.ndarray | None:
        """(H, W) bool, where an image that can be read says nothing, by its file or by ``pixels``; None: nowhere."""
        return None

    def size(self, data: bytes) -> tuple[int, int]:
        """(height, width) in px of a file, no TIFF, that PIL cannot open."""
        raise UnidentifiedImageError("neither PIL nor a plug-in can decode it")

    def decode(self, data: bytes, image: Image.Image | None, pixels: PixelFormat) -> np.ndarray:
        """(H, W, 3) uint8 of a file that ``is_deep``, whose PIL image may be None; a TIFF upright, others as stored.

        Raises:
            DeepImageError: values that ``pixels`` does not hold.
        """
        raise DeepImageError("more than 8 bits a sample: expected 8, or projects/Pixels")


def deep_images() -> DeepImages:
    """Who reads images with more than 8 bits a sample: the last that was registered."""
    load_plugins()
    *_, (_, images) = DEEP_IMAGES_REGISTRY
    return images()


def pixel_format(cfg: CfgNode) -> PixelFormat:
    """Of the images of a run."""
    images = deep_images()
    return images.format_of({key: value_of(cfg, key) for key in (*images.KEYS, *_STATISTICS)})


def format_keys() -> tuple[str, ...]:
    """The config keys that say what samples mean, by which flags have it too."""
    return deep_images().KEYS


def format_flags(pixels: PixelFormat) -> Flags:
    """What the flags of weights say of a format; {} of photographs of 8 bits."""
    return deep_images().flags_of(pixels)


def format_of(flags: Flags, records: Sequence[dict]) -> PixelFormat:
    """As the flags of weights or of a table say, else as a sample of the images asks for.

    Raises:
        UserError: flags that no config could have; images that nothing fits.
    """
    return deep_images().format_of(flags_of_images(flags, records))


def flags_of_images(flags: Flags, records: Sequence[dict]) -> Flags:
    """``flags``, with what a sample of the images asks for where they do not say it. Raises as format_of."""
    images = deep_images()
    is_stated = any(key in flags for key in images.KEYS)
    meaning = {**flags} if is_stated else {**flags, **images.find(records)}
    for key in meaning.keys() & {*images.KEYS, *_STATISTICS}:
        rule = declaration(key).rule
        expect(rule is None or rule.holds(meaning[key]), f"flags with {key} {meaning[key]}: make them again")
    return meaning


def is_deep(data: bytes, image: Image.Image | None) -> bool:
    """Whether a file has more than 8 bits a sample, by its first 26 bytes and PIL's image, of which a header is enough.

    PIL knows no TIFF of colours in floating point, nor any in float64: of these ``image`` is None.
    """
    if data.startswith(PNG_MAGIC):
        return data[24] == 16
    if image is None:
        return data.startswith(TIFF_MAGICS)
    if image.format == "TIFF" and image.mode in _COLORS:
        return image.tag_v2.get(BITS, (8,))[0] > 8
    # The header of a PGM says what white is, and PIL has made that 65535.
    return image.mode.startswith(("I", "F")) and (image.mode, image.format) != ("I", "PPM")


def open_deep(data: bytes) -> Image.Image | None:
    """As open_image, or None of a TIFF that PIL does not know, or does not unpack. Raises DeepImageError: see
    check_bands."""
    if not data.startswith(TIFF_MAGICS):
        return open_image(data)
    tags = tags_of(data)
    check_bands(tags)
    try:
        image = open_image(data)
    except UnidentifiedImageError:
        return None
    is_negative = image.mode == "L" and _SIGNED in tags.get(FORMAT, ())
    is_unpacked = image.mode == "RGB" or (image.mode == "CMYK" and max(tags[BITS]) == 8)
    has_planes = lies_in_planes(tags) and tags.get(COMPRESSION, NOT_COMPRESSED) == NOT_COMPRESSED
    is_known = (is_unpacked or not has_planes) and image.mode != "La" and not is_negative and not leaves_out_parts(tags)
    return image if is_known else None
