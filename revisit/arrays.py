"""Arrays in numpy's files, which anybody may have written: a head is believed where the file has as many bytes."""

import math
import os
import zipfile
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from revisit.errors import UserError, expect, first_line

KINDS = "biufU"  # of numbers and of text, as numpy calls them
MOST_ARRAYS, MOST_AXES = 10_000, 8
_HEADS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Head(NamedTuple):
    """What the first bytes of an array's file say of it."""

    shape: tuple[int, ...]
    dtype: np.dtype


def read_head(file: BinaryIO, size: int) -> Head:
    """Of a .npy file of ``size`` bytes, read up to its values. Raises ValueError where it is of objects, or of other
    values than follow."""
    version = npy.read_magic(file)
    if version not in _HEADS:
        raise ValueError(f"an array of version {version}: expected {' or '.join(map(str, _HEADS))}")
    start = file.tell()
    shape, _, dtype = _HEADS[version](file)
    values = size - (npy.MAGIC_LEN + file.tell() - start)
    if dtype.kind not in KINDS or not dtype.itemsize or len(shape) > MOST_AXES:
        raise ValueError(f"an array of {dtype} with {len(shape)} axes: expected numbers or text")
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != values:
        raise ValueError(f"an array of {dtype} {shape} in {values} bytes")
    return Head(shape, dtype)


def read_array(path: str | Path) -> np.ndarray:
    """The array of a .npy file: numbers or text. Raises ValueError for another file, OSError where there is none."""
    with open(path, "rb") as file:
        return array_in(file, os.fstat(file.fileno()).st_size)


def map_array(path: str | Path) -> np.ndarray:
    """As read_array, but its values are read from the file where they are asked for."""
    with open(path, "rb") as file:
        read_head(file, os.fstat(file.fileno()).st_size)
    return npy.open_memmap(path, mode="r")


def array_in(file: BinaryIO, size: int) -> np.ndarray:
    """As read_array, of an open file of ``size`` bytes."""
    read_head(file, size)
    file.seek(0)
    return npy.read_array(file, allow_pickle=False)


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a .npz file by name, numbers or text. They are not compressed, so none is larger than the file.

    Raises:
        UserError: there is none, it is damaged, or one that is compressed.
    """
    try:
        with open(path, "rb") as file:
            return arrays_in(file, os.fstat(file.fileno()).st_size)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except Exception as error:  # whatever damaged bytes trip
        raise UserError(f"{path}: no file of arrays, or a damaged one ({first_line(error)})") from error


def arrays_in(file: BinaryIO, size: int, unpacked: int = 0) -> dict[str, np.ndarray]:
    """As read_arrays, of an open file of ``size`` bytes; compressed ones too, up to so many bytes ``unpacked``."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        _check_members(members, size, unpacked)
        arrays = {}
        for member in members:
            with archive.open(member) as opened:
                arrays[member.filename.removesuffix(".npy")] = array_in(opened, member.file_size)
        return arrays


def _check_members(members: list[zipfile.ZipInfo], size: int, unpacked: int) -> None:
    """Before any is read: together they are no larger than their file, or than they may be unpacked."""
    packed = [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED and not unpacked]
    expect(not packed, f"{', '.join(packed[:3])} compressed: expected arrays as np.savez writes them")
    names = {member.filename for member in members}
    expect(len(names) == len(members) <= MOST_ARRAYS, f"{len(members)} arrays with {len(names)} names")
    claimed = sum(member.file_size for member in members)
    expect(claimed <= max(size, unpacked), f"arrays of {claimed} bytes in a file of {size}")
