"""Digests of each image: of its bytes, and of what it shows, with a small picture of it.

The perceptual hash has 64 bits that changes of size, light and compression leave nearly as they are: the image in 32 x
32 grey levels, its two-dimensional cosine transform, of which 8 x 8 low frequencies count, those of 0 left out. A bit
is whether one is above the median of all 64 (pHash: Zauner, Implementation and Benchmarking of Perceptual Image Hash
Functions, 2010, section 3.2.1).
"""

import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from projects.Rows.pictures import SIDE, picture_of
from revisit.arrays import read_arrays
from revisit.data.images.deep_images import format_flags
from revisit.data.images.image_bytes import UnreadableImageError
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import open_record
from revisit.data.sources.records import Records, ask_each, fingerprint
from revisit.errors import UserError, expect
from revisit.files import make_folder
from revisit.jobs.parts import Arrays, Work, in_parts, save_arrays
from revisit.jobs.processes import HERE
from revisit.jobs.record import Record
from revisit.jobs.runner import Runner

PART = 1024  # images
HASHED = 32  # px
BITS = 64
_LOW = slice(1, 9)  # frequencies, in half waves a side


class Digests(NamedTuple):
    """Of N images."""

    contents: np.ndarray  # (N,) str, the sha256 of each file's bytes
    bits: np.ndarray  # (N, BITS) bool, the perceptual hash
    pictures: np.ndarray  # (N, SIDE, SIDE, 3) uint8


def digests_of(records: Records, folder: Path, pixels: PixelFormat, runner: Runner = HERE) -> Digests:
    """Read every image once, and keep its digests in the folder, from which the next call takes them.

    A terminal shows the progress, and how long the rest takes; an interrupted call continues.

    Raises:
        SystemExit: in a process that has made its share of the parts, where another one puts them together.
        UserError: an image that cannot be read; the folder is of other images, or of another format.
    """
    make_folder(folder, "the folder of digests")
    with runner.alone(folder):
        Record(folder, _causes(records, pixels)).claim()
    path = folder / "looks.npz"
    if not path.is_file():
        work = Work("hashing", len(records), PART, partial(_of_part, records, pixels))
        with in_parts(work, folder / "parts_of_looks", runner) as arrays:
            save_arrays(path, arrays)
    return _digests_in(path, len(records))


def _causes(records: Records, pixels: PixelFormat) -> dict[str, Any]:
    """What digests follow from: of photographs of 8 bits from the images alone, as folders of earlier versions say."""
    flags = format_flags(replace(pixels, shown=()))
    images = {"images": fingerprint(records, labels=False)}
    return images | flags | {"fill": pixels.fill} if flags else images


def _digests_in(path: Path, count: int) -> Digests:
    """Of so many images. Raises UserError for other arrays."""
    arrays = read_arrays(path)
    forms = {name: (array.shape, array.dtype.kind) for name, array in arrays.items()}
    pictures = ((count, SIDE, SIDE, 3), "u")
    fits = forms == {"contents": ((count,), "U"), "bits": ((count, BITS), "b"), "pictures": pictures}
    expect(fits, f"{path} has no digests of {count} images: remove it, and give the same command again")
    return Digests(**arrays)


def _of_part(records: Records, pixels: PixelFormat, part: range) -> Arrays:
    digests = ask_each(partial(_digest, pixels=pixels), [records[index] for index in part])
    return Digests(*map(np.array, zip(*digests, strict=True)))._asdict()


def _digest(record: dict, pixels: PixelFormat) -> tuple[str, np.ndarray, np.ndarray]:
    try:
        picture = open_record(record, pixels)
        image = seen_from_afar(picture.decode(complete=True), pixels)
    except UnreadableImageError as error:
        raise UserError(f"unreadable image {error}: it was there when it was embedded, so embed again") from error
    return hashlib.sha256(picture.data).hexdigest(), perceptual_hash(image), picture_of(image)


def seen_from_afar(image: np.ndarray, pixels: PixelFormat) -> np.ndarray:
    """(H, W, 3) uint8 RGB of an (H, W, C) image: of channels their mean, in all three."""
    if not pixels.channels:
        return image
    return np.repeat(image.mean(axis=2, keepdims=True).astype(np.uint8), 3, axis=2)


def perceptual_hash(image: np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8 RGB -> (BITS,) bool."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    small = cv2.resize(grey, (HASHED, HASHED), interpolation=cv2.INTER_AREA).astype(np.float32)
    low = cv2.dct(small)[_LOW, _LOW].ravel()
    return low > np.median(low)


def differing_bits(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """In how many bits hashes (M, BITS) and (N, BITS) differ: (M, N) float32 whole numbers."""
    signs, other_signs = (2 * bits.astype(np.float32) - 1 for bits in (one, other))
    return (BITS - signs @ other_signs.T) / 2
