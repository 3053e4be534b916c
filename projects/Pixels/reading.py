"""Who reads images that are no photographs of 8 bits a sample, by what their samples mean."""

import logging
from typing import Any

import numpy as np

from projects.Pixels.channels import NAMED, SHOWN, flags_of_format, format_of_values, measured_ranges
from projects.Pixels.grey_levels import decode_deep, find_bits
from projects.Pixels.levels import samples_of, to_levels
from projects.Pixels.listing import ARRAYS, DICOM, images_among
from projects.Pixels.sample_files import read_samples, size_of
from projects.Pixels.statistics import MEAN, STD, levels_of, moments_of, principal_components
from projects.Pixels.survey import survey
from revisit.data.images.deep_images import DEEP_IMAGES_REGISTRY, DeepImages
from revisit.data.images.image_bytes import UnreadableImageError
from revisit.data.images.opening import TIFF_MAGICS
from revisit.data.images.pixel_format import PHOTOGRAPHS, PixelFormat
from revisit.data.sources.records import Records

from detectron2.utils.logger import log_first_n


@DEEP_IMAGES_REGISTRY.register()
class Pixels(DeepImages):
    """Reads channels, ranges and marks as INPUT.CHANNELS and its like say; grey levels of more bits by BIT_DEPTH."""

    KEYS = ("INPUT.BIT_DEPTH", *NAMED)
    SUFFIXES = frozenset((DICOM, *ARRAYS))
    format_of = staticmethod(format_of_values)
    flags_of = staticmethod(flags_of_format)
    images_among = staticmethod(images_among)
    size = staticmethod(size_of)
    decode = staticmethod(decode_deep)

    def find(self, records: Records) -> dict[str, Any]:
        seen = survey(records, PHOTOGRAPHS)
        if seen is None:
            bits, _ = find_bits(records) or (None, "")
            return flags_of_format(PixelFormat(bits))
        pixels = PixelFormat(channels=() if seen.is_colour else seen.channels, ranges=measured_ranges(seen, "auto"))
        if not pixels.channels:
            return flags_of_format(pixels)
        levels = levels_of(records, pixels)
        mean, std = moments_of(levels)
        shown = {SHOWN: principal_components(levels)} if pixels.count > 2 and not pixels.colours else {}
        return {**flags_of_format(pixels), **shown, MEAN: mean, STD: std}

    def read(self, data: bytes, record: dict, pixels: PixelFormat) -> np.ndarray:
        return to_levels(samples_of(data, record, pixels), pixels)

    def without_data(self, data: bytes, record: dict, pixels: PixelFormat) -> np.ndarray | None:
        if not pixels.is_of_photographs:
            return samples_of(data, record, pixels).missing
        try:  # transparency of a PNG hides a picture, and is no mark
            return read_samples(data).missing if data.startswith(TIFF_MAGICS) else None
        except UnreadableImageError as error:  # of a kind that PIL alone reads
            message = f"{record['file_name']}: which pixels have no data cannot be read ({error}): all have"
            log_first_n(logging.WARNING, message, name=__name__)
            return None
