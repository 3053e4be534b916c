"""Windows of whole slides, by openslide: of several levels the one of full resolution."""

import os
from functools import lru_cache
from typing import Any

import numpy as np

from projects.Pixels.samples import Samples, Scan, with_missing
from revisit.data.images.image_bytes import Window
from revisit.data.images.opening import check_pixel_count
from revisit.files import input_file
from revisit.plugins import require_package

SLIDES = frozenset((".svs", ".ndpi", ".mrxs", ".scn", ".bif", ".svslide", ".vms", ".vmu"))
_OPEN = 4  # slides in a process
_BYTES_OF_PIXEL = 16  # of RGBA, while it is decoded


def slide_head(file_name: str) -> Scan:
    """Height and width in px, and False: of pixels without data only who reads them knows. Raises as ``read_slide``."""
    width, height = _opened(file_name).dimensions
    return Scan(height, width, has_marks=False)


def read_slide(file_name: str, window: Window) -> Samples:
    """RGB of what of a window the slide has; where nothing was scanned it is missing.

    Raises:
        UserError: openslide is not installed; no file.
        Exception: whatever openslide says of another format or a damaged file.
    """
    slide, (left, top, right, bottom) = _opened(file_name), window
    check_pixel_count(bottom - top, right - left, _BYTES_OF_PIXEL)
    region = slide.read_region((left, top), 0, (right - left, bottom - top))
    width, height = slide.dimensions
    pixels = np.asarray(region)[: height - top, : width - left]
    return with_missing(Samples(pixels[..., :3], is_colour=True), pixels[..., 3] == 0)


def _opened(file_name: str) -> Any:
    path = input_file(file_name)
    return _slide(str(path), os.stat(path).st_mtime_ns, os.getpid())


@lru_cache(maxsize=_OPEN)
def _slide(path: str, time: int, process: int) -> Any:
    # By process: a forked worker would share the places of open files with the others.
    missing = "whole slides need the package openslide: pip install 'revisit-detectron2[slides]'"
    return require_package("openslide", missing).OpenSlide(path)
