"""What files in a folder of images are, by their names: images, images that cannot be read here, or neither."""

import functools
import importlib
import logging
from collections import Counter
from pathlib import Path

from PIL import features

logger = logging.getLogger(__name__)

# Photographs in formats that PIL reads by a plugin, if at all.
UNREAD_SUFFIXES = frozenset(
    {".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".jpx", ".jxr", ".psd", ".exr", ".hdr", ".dcm", ".svg"}
    | {".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf", ".pef", ".srw"}
)
CONVERT = "which cannot be read: convert them, or install pillow-heif for .heic and Pillow from 11.3 on for .avif"


def suffixes_of_plugins() -> frozenset[str]:
    """The suffixes of UNREAD_SUFFIXES that this Python reads after all; makes the plugins known to PIL."""
    found = {".avif"} if features.check("avif") else set()
    if heif := _import("pillow_heif"):
        heif.register_heif_opener()
        found |= {".heic", ".heif"}
    if _import("pillow_avif"):  # which registers itself
        found.add(".avif")
    return frozenset(found)


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError:  # not installed, or not for this machine
        return None


def is_visible(name: str) -> bool:
    """False of hidden files and folders, and of the folder that a Mac adds to archives."""
    return not name.startswith(".") and name != "__MACOSX"


def described(suffixes: Counter[str]) -> str:
    """Counts in words: ``3 .heic and 1 .jp2``."""
    return " and ".join(f"{count:,} {suffix}" for suffix, count in sorted(suffixes.items()))


def warn_of_unread_formats(path: Path, suffixes: Counter[str]) -> None:
    """One warning of the images below ``path`` that are left out, once a process."""
    if suffixes:
        _warn_once(f"{path}: left out {described(suffixes)}, {CONVERT}")


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning(message)
