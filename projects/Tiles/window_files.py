"""Windows of images' files, read without the whole where the file allows it.

- A TIFF, a BigTIFF or a COG: the strips or tiles that a window touches are decoded. Reduced levels are not read.
- A .npy file is mapped.
- Of another file (JPEG, PNG) the whole image is decoded, and the last one is kept: up to what ``opening.py`` allows.

Files are opened for each window, so nothing open is carried into a worker.
"""

import os
import threading
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from projects.Pixels.arrays import NPY_MAGIC, map_numpy
from projects.Pixels.sample_files import read_samples
from projects.Pixels.samples import Samples, with_missing
from projects.Pixels.tiff import Window, read_tiff, tiff_head
from projects.Pixels.write_tiff import samples_bytes
from revisit.data.images.image_bytes import WINDOW, WINDOW_READER_REGISTRY, UnreadableImageError, first_bytes, read_file
from revisit.data.images.opening import TIFF_MAGICS
from revisit.data.images.reader import naming, read_size
from revisit.errors import UserError, first_line

_LARGE = "one that is too large can be saved in tiles: gdal_translate -co TILED=YES -co COMPRESS=DEFLATE"
_one_at_a_time = threading.Lock()


class Scan(NamedTuple):
    """What is known of a file before its image is read."""

    height: int  # px
    width: int
    has_marks: bool  # whether some of its pixels may have no data, by what the file says


def look_at(file_name: str) -> Scan:
    """By the head of a file. Raises UserError where its windows cannot be read."""
    try:
        head = first_bytes(file_name)
        if head.startswith(TIFF_MAGICS):
            return Scan(*tiff_head(file_name))
        if head.startswith(NPY_MAGIC):
            values = map_numpy(file_name)
            return Scan(*values.shape[:2], values.dtype.kind == "f")
        return Scan(**read_size(file_name), has_marks=False)
    except UserError as error:
        raise UserError(f"{error}; {_LARGE}") from error
    except Exception as error:  # whatever damaged bytes trip
        raise UserError(f"{file_name} cannot be cut into tiles: {first_line(error)}") from error


def read_window(file_name: str, window: Window) -> Samples:
    """What a file holds in a window that lies in its image, all channels.

    Raises:
        DeepImageError: nothing gives its samples a meaning, or what reads such is not installed.
        UnreadableImageError: damaged, too large, of another format, or not of the size that the window asks for.
    """
    with naming(file_name):
        head = first_bytes(file_name)
        if head.startswith(TIFF_MAGICS):
            samples = read_tiff(file_name, file_name, window)
        elif head.startswith(NPY_MAGIC):
            samples = with_missing(Samples(_part(map_numpy(file_name), window)))
        else:
            samples = _cut(_whole_image(file_name), window)
        left, top, right, bottom = window
        if samples.values.shape[:2] != (bottom - top, right - left):
            raise UnreadableImageError(f"no pixels in a part of {window}: the file has changed")
        return samples


@WINDOW_READER_REGISTRY.register()
def window_bytes(record: dict) -> bytes:
    """A file of a record's window alone, from which every reader gets the pixels of the whole image there."""
    return samples_bytes(read_window(str(record["file_name"]), record[WINDOW]))


def _whole_image(file_name: str) -> Samples:
    with _one_at_a_time:  # so that of many windows of an image one decodes it
        return _kept_image(file_name, os.stat(file_name).st_mtime_ns)


@lru_cache(maxsize=1)
def _kept_image(file_name: str, time: int) -> Samples:
    return read_samples(read_file(file_name), file_name)


def _cut(samples: Samples, window: Window) -> Samples:
    missing, alpha = (None if each is None else _part(each, window) for each in (samples.missing, samples.alpha))
    missing = missing if missing is not None and missing.any() else None
    return samples._replace(values=_part(samples.values, window), missing=missing, alpha=alpha)


def _part(values: np.ndarray, window: Window) -> np.ndarray:
    left, top, right, bottom = window
    return values[top:bottom, left:right]
