"""Images in numpy's files: .npy, and .npz with one array, of (H, W) or (H, W, C) numbers."""

import io
import zipfile

import numpy as np

from projects.Pixels.samples import Samples, with_missing
from revisit.arrays import Head, array_in, arrays_in, map_array, read_head
from revisit.data.images.image_bytes import DeepImageError, Size
from revisit.data.images.opening import MAX_MEMORY, check_pixel_count

NPY_MAGIC, NPZ_MAGIC = b"\x93NUMPY", b"PK\x03\x04"
WHITE = 255  # of 8 bits
_COPIES = 3  # of the values, while they are read


def read_numpy(data: bytes) -> Samples:
    """(H, W), or (H, W, C): channels are last. An array whose first axis is the shortest, as (C, H, W) has it, is
    refused, for nothing says which is meant. Pixels with NaN or infinity are missing. Of bool, True is white: 255.

    Raises:
        DeepImageError: another shape, or no numbers.
        UserError, ValueError: no file of an array, a damaged one, several, or too large.
    """
    head = _head(data)
    _check(head)
    stream, size = io.BytesIO(data), len(data)
    is_npy = data.startswith(NPY_MAGIC)
    values = array_in(stream, size) if is_npy else next(iter(arrays_in(stream, size, MAX_MEMORY // _COPIES).values()))
    return of_array(values if values.ndim == 3 else values[..., None])


def of_array(values: np.ndarray) -> Samples:
    """An (H, W, C) array, or a part of one of ``map_numpy``, as ``read_numpy`` has it."""
    return with_missing(Samples(values * np.uint8(WHITE) if values.dtype.kind == "b" else values))


def map_numpy(file_name: str) -> np.ndarray:
    """(H, W, C) of a .npy file as read_numpy has it, of any size: its values are read where they are asked for."""
    values = map_array(file_name)
    _check_kind(Head(values.shape, values.dtype))
    return values if values.ndim == 3 else values[..., None]


def numpy_size(data: bytes) -> Size:
    """(height, width) in px of an array that read_numpy reads, by its head."""
    head = _head(data)
    _check(head)
    return head.shape[:2]


def _head(data: bytes) -> Head:
    if data.startswith(NPY_MAGIC):
        return read_head(io.BytesIO(data), len(data))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if len(members) != 1:
            raise DeepImageError(f"a .npz file of {len(members)} arrays: expected one, the image")
        with archive.open(members[0]) as file:
            return read_head(file, members[0].file_size)


def _check(head: Head) -> None:
    _check_kind(head)
    height, width, *channels = head.shape
    check_pixel_count(height, width, max(1, _COPIES * head.dtype.itemsize * (channels[0] if channels else 1)))


def _check_kind(head: Head) -> None:
    shape = head.shape
    if head.dtype.kind not in "biuf":
        raise DeepImageError(f"an array of {head.dtype}: expected integers or floats")
    if len(shape) not in (2, 3):
        raise DeepImageError(f"an array of shape {shape}: expected (H, W), or (H, W, C) with channels last")
    if len(shape) == 3 and shape[0] < min(shape[1:]):
        expected = "(H, W, C), so save numpy.moveaxis(array, 0, -1) if its channels are first"
        raise DeepImageError(f"an array of shape {shape}, whose first axis is the shortest: expected {expected}")
