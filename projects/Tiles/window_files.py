"""Windows of images' files, read without the whole where the file allows it.

- A TIFF, a BigTIFF or a COG: the strips or tiles that a window touches are decoded. Reduced levels are not read.
- A .npy file is mapped.
- JPEG 2000, and TIFFs of a compression that tifffile does not know, are read by rasterio (the extra geo), whole slides
  at their full resolution by openslide (slides).
- Of another file (JPEG, PNG) the whole image is decoded, and the last one is kept: up to what ``opening.py`` allows.

Files are opened for each window, slides once in each process, so nothing open is carried into a worker.
"""

import io
import logging
import os
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from projects.Pixels.arrays import NPY_MAGIC, map_numpy, of_array
from projects.Pixels.sample_files import read_samples
from projects.Pixels.samples import Samples, Scan, any_of
from projects.Pixels.tiff import UnknownCompressionError, read_tiff, stored_samples, tiff_head
from projects.Pixels.write_tiff import samples_bytes
from projects.Tiles.geo import JP2_MAGICS
from projects.Tiles.rasters import raster_head, read_raster
from projects.Tiles.slides import SLIDES, read_slide, slide_head
from revisit.data.images.image_bytes import (
    AS_STORED,
    WINDOW,
    WINDOW_READER_REGISTRY,
    UnreadableImageError,
    Window,
    first_bytes,
    read_file,
)
from revisit.data.images.opening import TIFF_MAGICS
from revisit.data.images.reader import naming, read_size
from revisit.data.images.tiff_tags import EXTRA, PREMULTIPLIED, tags_of
from revisit.data.sources.labels import part_of
from revisit.errors import UserError, first_line

from detectron2.utils.logger import log_first_n

_LARGE = "one that is too large can be saved in tiles: gdal_translate -co TILED=YES -co COMPRESS=DEFLATE"
REDUCED = "reduced"  # a record's field, beside a window: how many px of the file are a pixel of the image
_PART = 1024  # px of each side, which are reduced at once
_one_at_a_time = threading.Lock()


class _Kind(NamedTuple):
    """How files of some formats are read."""

    look: Callable[[str], Scan]
    read: Callable[[str, Window], Samples]


def look_at(file_name: str) -> Scan:
    """By the head of a file. Raises UserError where its windows cannot be read."""
    if os.path.isfile(mask := f"{file_name}.msk"):  # GDAL's
        marked = "pixels without data are those that the image's own file marks"
        log_first_n(logging.WARNING, f"{mask} is not read: {marked}", name=__name__)
    try:
        return _kind_of(file_name).look(file_name)
    except UserError:
        raise
    except Exception as error:  # whatever damaged bytes trip
        raise UserError(f"{file_name} cannot be cut into tiles: {first_line(error)}") from error


def read_window(file_name: str, window: Window) -> Samples:
    """What a file holds in a window that lies in its image, all channels.

    Raises:
        DeepImageError: nothing gives its samples a meaning, or what reads such is not installed.
        UnreadableImageError: damaged, too large, of another format, or not of the size that the window asks for.
    """
    with naming(file_name):
        samples = _kind_of(file_name).read(file_name, window)
        left, top, right, bottom = window
        if samples.values.shape[:2] != (bottom - top, right - left):
            raise UnreadableImageError(f"no pixels in a part of {window}: the file has changed")
        return samples


def read_reduced(file_name: str, window: Window, times: int) -> Samples:
    """As read_window, (ceil(h / times), ceil(w / times), C): each pixel is the mean of those with data in a square of
    ``times`` px, and is missing where none has. In parts, so that memory goes by the result."""
    left, top, right, bottom = window
    step = times * max(1, _PART // times)
    rows = []
    for y in range(top, bottom, step):
        parts = [(x, y, min(x + step, right), min(y + step, bottom)) for x in range(left, right, step)]
        rows.append(_joined([_reduced(read_window(file_name, part), times) for part in parts], axis=1))
    whole = _joined(rows, axis=0)
    return whole._replace(marked=any_of(whole.marked))


def _reduced(samples: Samples, times: int) -> Samples:
    """``marked`` is an array, whether or not some of it is."""
    values, missing, alpha = samples.values, samples.missing, samples.alpha
    has_data = np.ones(values.shape[:2], bool) if missing is None else ~missing
    count = _sums(has_data, times)
    means = [_sums(np.where(has_data, values[..., c], 0), times) / np.maximum(count, 1) for c in range(values.shape[2])]
    mean = np.stack(means, axis=-1)
    kind = values.dtype
    return samples._replace(
        values=mean.astype(kind) if kind.kind == "f" else np.round(mean).astype(kind),
        marked=count == 0,
        alpha=None if alpha is None else _reduced_alpha(samples, count, times),
    )


def _reduced_alpha(samples: Samples, count: np.ndarray, times: int) -> np.ndarray:
    """Of all pixels of a square, of premultiplied values of those ``count`` with data that these are of; of integers 0
    where all are transparent alone."""
    of_all = _sums(np.ones(samples.alpha.shape), times)
    mean = _sums(samples.alpha, times) / (np.maximum(count, 1) if samples.is_premultiplied else of_all)
    kind = samples.alpha.dtype
    return mean.astype(kind) if kind.kind == "f" else np.ceil(mean).astype(kind)


def _sums(values: np.ndarray, times: int) -> np.ndarray:
    """Over squares of (H, W), float64; those at the borders have fewer pixels."""
    rows, columns = (np.arange(0, length, times) for length in values.shape)
    return np.add.reduceat(np.add.reduceat(values, rows, axis=0, dtype=np.float64), columns, axis=1)


def _joined(parts: list[Samples], axis: int) -> Samples:
    """Of one file, side by side or one below the other."""
    alphas = [part.alpha for part in parts if part.alpha is not None]
    return parts[0]._replace(
        values=np.concatenate([part.values for part in parts], axis),
        marked=np.concatenate([part.marked for part in parts], axis),
        alpha=np.concatenate(alphas, axis) if alphas else None,
    )


@WINDOW_READER_REGISTRY.register()
def window_bytes(record: dict) -> bytes:
    """A file of a record's window alone, from which every reader gets the pixels of the whole image there, so many
    times smaller as the record's REDUCED says."""
    file_name, window, times = str(record["file_name"]), record[WINDOW], record.get(REDUCED, 1)
    if AS_STORED not in record:
        return samples_bytes(read_window(file_name, window) if times == 1 else read_reduced(file_name, window, times))
    with naming(file_name):
        file = io.BytesIO()
        np.save(file, stored_samples(file_name, window), allow_pickle=False)
        return file.getvalue()


def _kind_of(file_name: str) -> _Kind:
    """By its suffix of a whole slide, else by what a file begins with."""
    if Path(file_name).suffix.lower() in SLIDES:
        return _SLIDE
    head = first_bytes(file_name)
    return next((kind for magics, kind in _KINDS.items() if head.startswith(magics)), _WHOLE)


def _read_tiff(file_name: str, window: Window) -> Samples:
    try:
        return read_tiff(file_name, file_name, window)
    except UnknownCompressionError:
        samples = read_raster(file_name, window)
        with open(file_name, "rb") as file:  # GDAL does not say it
            is_premultiplied = samples.alpha is not None and PREMULTIPLIED in tags_of(file).get(EXTRA, ())
        return samples._replace(is_premultiplied=is_premultiplied)


def _look_at_array(file_name: str) -> Scan:
    values = map_numpy(file_name)
    return Scan(*values.shape[:2], values.dtype.kind == "f")


def _read_array(file_name: str, window: Window) -> Samples:
    return of_array(part_of(map_numpy(file_name), window))


def _look_at_whole(file_name: str) -> Scan:
    try:
        return Scan(**read_size(file_name), has_marks=False)
    except UserError as error:
        raise UserError(f"{error}; {_LARGE}") from error


def _read_whole(file_name: str, window: Window) -> Samples:
    with _one_at_a_time:  # so that of many windows of an image one decodes it
        whole = _kept_image(file_name, os.stat(file_name).st_mtime_ns)
    return whole.changed(partial(part_of, window=window))


@lru_cache(maxsize=1)
def _kept_image(file_name: str, time: int) -> Samples:
    return read_samples(read_file(file_name), file_name)


_SLIDE, _WHOLE = _Kind(slide_head, read_slide), _Kind(_look_at_whole, _read_whole)
_KINDS = {
    TIFF_MAGICS: _Kind(tiff_head, _read_tiff),
    NPY_MAGIC: _Kind(_look_at_array, _read_array),
    JP2_MAGICS: _Kind(raster_head, read_raster),
}
