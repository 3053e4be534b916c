"""One photograph at several depths, in files as people have them."""

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import tifffile
from PIL import Image

DEPTHS = {"8": 8, "10": 10, "12": 12, "16": 16, "float": 1, "float255": 8}  # INPUT.BIT_DEPTH of each


def photograph(seed: int = 0, size: tuple[int, int] = (48, 64)) -> np.ndarray:
    """(H, W, 3) uint16 RGB that fills its range."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0 : size[0], 0 : size[1]][..., None] / max(size) * 2 * np.pi
    waves = np.sin(x + rng.uniform(0, 6, 3)) + np.cos(y * 2 + rng.uniform(0, 6, 3)) + rng.normal(0, 0.1, (*size, 3))
    return np.rint((waves - waves.min()) / np.ptp(waves) * 65535).astype(np.uint16)


def shallow_picture() -> np.ndarray:
    """(33, 50, 3) uint8 RGB."""
    return (photograph(size=(33, 50)) >> 8).astype(np.uint8)


def write_at(depth: str, path: Path, pixels: np.ndarray) -> Path:
    """Write uint16 ``pixels``, (H, W, 3) RGB or (H, W), with a name of DEPTHS; floats as TIFF, others as PNG."""
    if depth.startswith("float"):
        top = 255 if depth == "float255" else 1
        values = (pixels / 65535 * top).astype(np.float32)
    else:
        values = pixels >> (16 - int(depth))
        values = values.astype(np.uint8) if depth == "8" else values
    path = path.with_suffix(".tif" if depth.startswith("float") else ".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), values[..., ::-1] if values.ndim == 3 else values)
    return path


def lay(path: Path, orientation: int) -> None:
    """Have a PNG or a little-endian TIFF say that it is to be turned: EXIF's orientation."""
    data = path.read_bytes()
    if path.suffix == ".png":
        exif = Image.Exif()
        exif[0x0112] = orientation
        chunk = b"eXIf" + exif.tobytes()[6:]
        start = data.index(b"IDAT") - 4
        chunk = struct.pack(">L", len(chunk) - 4) + chunk + struct.pack(">L", zlib.crc32(chunk))
        path.write_bytes(data[:start] + chunk + data[start:])
        return
    (at,) = struct.unpack("<L", data[4:8])
    (count,) = struct.unpack("<H", data[at : at + 2])
    entries = [data[at + 2 + 12 * n : at + 14 + 12 * n] for n in range(count)]
    entries.append(struct.pack("<HHLHH", 0x0112, 3, 1, orientation, 0))
    entries.sort(key=lambda entry: struct.unpack("<H", entry[:2]))
    table = struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)
    path.write_bytes(data[:4] + struct.pack("<L", len(data)) + data[8:] + table)


def leave_out(path: Path, numbers: list[int]) -> None:
    """Have a TIFF in tiles say of some that they are not there, as GDAL's SPARSE_OK."""
    with tifffile.TiffFile(path) as file:
        order = "<" if file.byteorder == "<" else ">"
        tags = [file.pages[0].tags[code] for code in (324, 325)]
        places = [(tag.valueoffset, {3: "H", 4: "L"}[tag.dtype]) for tag in tags]
    data = bytearray(path.read_bytes())
    for place, kind in places:
        size = struct.calcsize(order + kind)
        for number in numbers:
            struct.pack_into(order + kind, data, place + size * number, 0)
    path.write_bytes(data)
