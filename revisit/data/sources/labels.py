"""Label maps and depth maps on disk: the id or the distance that each pixel's file holds, never its colour."""

import io
import os
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from revisit.arrays import array_in, map_array, read_array
from revisit.data.images.image_bytes import AS_STORED, WINDOW, PathLike, Window, first_bytes, read_bytes
from revisit.data.images.opening import PNG_MAGIC, TIFF_MAGICS, open_image
from revisit.data.images.tiff_tags import (
    BITS,
    BLACK_IS_ZERO,
    COMPRESSION,
    PHOTOMETRIC,
    WHITE_IS_ZERO,
    is_turned,
    leaves_out_parts,
    tags_of,
)
from revisit.errors import UserError, first_few, translated
from revisit.files import written_whole

VOID = 255  # the train id of pixels without a class
_ID_MODES = ("P", "L", "I", "I;16", "I;16L", "I;16B", "I;16N")  # PIL's names of palette, grey and 16-bit grey
AS_JPEG = (6, 7)  # values of TIFFs' COMPRESSION
UNCERTAIN = "grey {}, so that its ids are not certain"
LOSSY = "compressed as a JPEG, which changes its ids"
_one_at_a_time = threading.Lock()


def read_labels(file_name: PathLike, num_classes: int, offset: int = 0, window: Window | None = None) -> np.ndarray:
    """The train id of every pixel, uint8 (H, W): 0 to num_classes - 1, or 255 where there is none.

    Args:
        file_name: an image of ids: with a palette, whose colours mean nothing, or grey with 8 or 16 bits.
        num_classes: 1 to 255.
        offset: how the file counts. 0: its ids are train ids, and 255 is void. 1: ids 1 to num_classes are the
            classes, and 0 is void; 255 is refused there, because a file that has it probably counts from 0.
        window: of the map alone these pixels, see read_ids.

    Raises:
        UserError: a file that is missing, damaged or in colour, or an id that is none of these.
    """
    ids = read_ids(file_name, window)
    last = num_classes - 1 + offset
    void = 0 if offset else VOID
    is_class = (ids >= 0) & (ids <= last)
    wrong = ~is_class & (ids != void)
    if wrong.any():
        unknown = np.unique(ids[wrong])
        counted = "; for masks that count from 0 there is datasets/prepare_nyud.py --mask-ids zero_based" * offset
        problem = f"label map {file_name} has ids {first_few(unknown.astype(str).tolist())}"
        raise UserError(f"{problem}: expected {offset} to {last}, and {void} for void{counted}")
    return ids.astype(np.uint8) - np.uint8(offset)  # in this type 0 - 1 is VOID


def read_depth(file_name: PathLike, window: Window | None = None) -> np.ndarray:
    """The distance of every pixel, float32 (H, W) metres, contiguous; 0 where it is missing.

    Of a .npy file, (H, W) or (H, W, 1), of floating-point numbers of any width; of a window no more of it is read.

    Raises:
        UserError: a file that is missing or damaged, needs pickle, has another shape or type, or holds a
            negative, infinite or undefined distance.
    """
    with translated(f"reading depth map {file_name}", content=True):
        depth = map_array(file_name) if window else read_array(file_name)
        has_one_channel = depth.ndim == 3 and depth.shape[2] == 1
        if has_one_channel:
            depth = depth[..., 0]
        if depth.ndim != 2 or not depth.size or depth.dtype.kind != "f":
            raise ValueError(f"{depth.dtype} {depth.shape}, expected floating-point metres of shape (H, W)")
        depth = part_of(depth, window)
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
            depth = np.ascontiguousarray(depth, np.float32)
        are_metres = np.isfinite(depth) & (depth >= 0)
        wrong = depth.size - int(are_metres.sum())
        if wrong:
            raise ValueError(f"{wrong} of {depth.size} values are no metres: expected 0 where the depth is missing")
    return depth


def check_size(file_name: PathLike, pixels: np.ndarray, image_name: PathLike, size: tuple[int, int]) -> None:
    """Raises UserError unless ``pixels`` (H, W), read from ``file_name``, has the (H, W) of its image."""
    if pixels.shape != size:
        own, wanted = (f"{width} x {height}" for height, width in (pixels.shape, size))
        message = f"{file_name} is {own} pixels, but its image {image_name} is {wanted}"
        raise UserError(f"{message}: expected the same size")


def write_labels(path: Path, ids: np.ndarray) -> None:
    """Write uint8 (H, W) ids as an 8-bit grey PNG, whole or not at all."""
    with written_whole(path) as temporary:
        Image.fromarray(ids).save(temporary, format="PNG")


def write_depth(path: Path, depth: np.ndarray) -> None:
    """Write float32 (H, W) metres as .npy, whole or not at all."""
    with written_whole(path) as temporary, open(temporary, "wb") as file:  # np.save would change the name's end
        np.save(file, depth, allow_pickle=False)


def part_of(pixels: np.ndarray, window: Window | None) -> np.ndarray:
    """(h, w, ...) of a window of (H, W, ...); all without one."""
    if not window:
        return pixels
    left, top, right, bottom = window
    return pixels[top:bottom, left:right]


def read_ids(file_name: PathLike, window: Window | None = None) -> np.ndarray:
    """(H, W) integers as stored. Of a window of a TIFF no more is decoded; of another file all, which is kept until
    the next one is read. Raises UserError: see read_labels."""
    if not window:
        return _all_ids(file_name)
    if first_bytes(file_name).startswith(TIFF_MAGICS):
        return _ids_of_tiff(file_name, window)
    with translated(f"reading label map {file_name}", content=True), _one_at_a_time:
        return part_of(_kept_ids(file_name, os.stat(file_name).st_mtime_ns), window)


@lru_cache(maxsize=1)
def _kept_ids(file_name: PathLike, time: int) -> np.ndarray:
    return _all_ids(file_name)


def _ids_of_tiff(file_name: PathLike, window: Window) -> np.ndarray:
    with translated(f"reading label map {file_name}", content=True):
        problem = _problem_of_tiff(file_name, os.stat(file_name).st_mtime_ns)
        if problem:
            raise ValueError(f"{problem}: expected 8 or 16 bits, and black as 0")
        data = read_bytes({"file_name": os.fspath(file_name), WINDOW: window, AS_STORED: True})
        values = array_in(io.BytesIO(data), len(data))
        if values.dtype.kind not in "iu" or values.shape[2] != 1:
            raise ValueError(f"{values.shape[2]} samples of {values.dtype} a pixel: expected one id, in 8 or 16 bits")
    return values[..., 0]


@lru_cache(maxsize=64)
def _problem_of_tiff(file_name: PathLike, time: int) -> str:
    """Asked for each window, and read once."""
    with open(file_name, "rb") as file:
        return _uncertain_ids(tags_of(file))


def _all_ids(file_name: PathLike) -> np.ndarray:
    with (
        translated(f"reading label map {file_name}", content=True),
        open(file_name, "rb") as file,
        open_image(file) as image,
    ):
        mode, tags = image.mode, getattr(image, "tag_v2", {})
        if leaves_out_parts(tags) or (tags and is_turned(first_bytes(file_name), tags, mode)):  # which PIL misreads
            return _ids_of_tiff(file_name, (0, 0, *image.size))
        ids = np.asarray(image)
        is_jpeg = image.format in ("JPEG", "MPO")  # whatever its name ends in
        file.seek(0)
        header = file.read(26)
    # PNG defines a grey level of few bits as a share of white, PIL scales some to 255, and writers differ.
    has_few_bits = mode == "1" or (header.startswith(PNG_MAGIC) and header[24] < 8 and header[25] == 0)
    problem = _uncertain_ids(tags)
    if is_jpeg:
        problem = LOSSY
    elif has_few_bits:
        problem = UNCERTAIN.format("of less than 8 bits")
    if problem or mode not in _ID_MODES:
        kind = problem or f"in mode {mode}"
        message = f"label map {file_name} is {kind}: expected one id a pixel, by a palette (mode P) or in 8 or 16 bits"
        raise UserError(f"{message}; a mask in colours has to be turned into ids first")
    return ids


def _uncertain_ids(tags: Mapping) -> str:
    """What is wrong with the ids of a TIFF, by its tags; "" of what is none, or has a palette."""
    if tags.get(COMPRESSION) in AS_JPEG:
        return LOSSY
    bits, photometric = min(tags.get(BITS, [8])), tags.get(PHOTOMETRIC)
    if photometric in (WHITE_IS_ZERO, BLACK_IS_ZERO) and bits < 8:
        return UNCERTAIN.format("of less than 8 bits")
    # Of 8 bits PIL gives 255 - id.
    return UNCERTAIN.format("with white as 0") if photometric == WHITE_IS_ZERO and bits == 8 else ""
