"""Which files of a folder are images, of those that the core does not read: DICOM, and arrays where they are alone."""

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain

from projects.Pixels.dicom import DIRECTORIES, HEAD, WITHOUT_PIXELS, can_read, is_dicom, kind_of
from revisit.data.images.image_bytes import UnreadableImageError, first_bytes
from revisit.data.sources.records import ask_each

from detectron2.utils.logger import log_first_n

DICOM, ARRAYS = ".dcm", (".npy", ".npz")
_KINDS = 4096  # bytes, in which a DICOM file says what kind of image it is


def images_among(files: Mapping[str, list[str]], alone: bool) -> dict[str, list[str]]:
    """By suffix, files that are images: .dcm where pydicom is installed. Where a folder has no other images, ``alone``,
    .npy and .npz too, because next to photographs they are features; and where it has none of these, DICOM files of any
    name. Of DICOM files, localisers and secondary captures are left out, unless all are such."""
    if can_read() and DICOM in files:
        return {DICOM: _pictures(files[DICOM])}
    if not alone:
        return {}
    if arrays := {suffix: files[suffix] for suffix in ARRAYS if suffix in files}:
        return arrays
    if not can_read():
        return {}
    named = {suffix: [path for path in paths if is_dicom(first_bytes(path, HEAD))] for suffix, paths in files.items()}
    pictures = set(_pictures(list(chain.from_iterable(named.values()))))
    return {suffix: [path for path in paths if path in pictures] for suffix, paths in named.items() if paths}


def _pictures(paths: list[str]) -> list[str]:
    kinds = dict(zip(paths, ask_each(_kind, paths), strict=True))
    files = [path for path in paths if kinds[path] != DIRECTORIES]
    images = [path for path in files if kinds[path] != WITHOUT_PIXELS]
    kept = [path for path in images if not kinds[path]] or images
    left_out = Counter(kinds[path] for path in set(files).difference(kept))
    if left_out:
        counts = " and ".join(f"{count:,} {kind}" for kind, count in sorted(left_out.items()))
        message = f"of {len(files):,} DICOM files, {counts} are left out"
        log_first_n(logging.WARNING, message, name=__name__, key="message")
    return kept


def _kind(path: str) -> str:
    with suppress(UnreadableImageError):  # who reads it whole says what is wrong
        return kind_of(first_bytes(path, _KINDS))
    return ""
