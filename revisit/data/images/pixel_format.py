"""What the samples of images mean: one value, decided once, through which every image is read."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PixelFormat:
    """Who reads an image takes it with the record; deep_images.py makes grey levels of samples.

    Attributes:
        bits: of images with more than 8 bits a sample: values of 0 to 2**bits - 1 become grey levels of 0 to 255. 8 to
            16, or 1, floats of 0 to 1. None: nothing says it, and such images are refused.
    """

    bits: int | None = None


PHOTOGRAPHS = PixelFormat()  # RGB of 8 bits
