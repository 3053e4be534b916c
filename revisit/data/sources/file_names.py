"""What images are called by: their files. Those in memory, and those in shards, have none of their own."""

import os
import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from revisit.data.images.image_bytes import WINDOW
from revisit.data.sources.records import Records
from revisit.errors import expect


def expect_file_names(records: Records, named: str, expected: str = "a data set with a file for each image") -> None:
    """Raise UserError where results by the names of files would mix up images: of the records of a data set ``named``
    so, one is in memory, in a shard, or a window of its file."""
    expect_files(records, named, expected)
    in_windows = any(WINDOW in record for record in records)
    expect(not in_windows, f"{named}: windows of one file have no names of their own: expected {expected}")


def expect_files(records: Records, named: str, expected: str) -> None:
    """As expect_file_names, but several windows may have one file."""
    in_memory = any("file_name" not in record for record in records)
    in_shards = any("offset" in record for record in records)
    expect(not in_memory, f"{named}: images in memory have no names: expected {expected}")
    expect(not in_shards, f"{named}: images in shards have no names: expected {expected}")


def in_normal_form(name: str) -> str:
    """The name as Unicode composes it: a Mac writes an accent as a letter of its own."""
    return unicodedata.normalize("NFC", name)


def other_spellings(name: str) -> list[str]:
    """How else the same name may stand on a disk: with slashes for backslashes, without escapes of an address or blanks
    around it, in another normal form of Unicode."""
    plain = name.replace("\\", "/")
    decomposed = unicodedata.normalize("NFD", plain)
    return [plain, unquote(plain, errors="surrogateescape"), plain.strip(), in_normal_form(plain), decomposed]


def real_paths(paths: list[str]) -> list[str]:
    """Those that os.path.realpath says, which looks at each folder above a file: here once."""
    real = cache(os.path.realpath)
    of_folders = [os.path.join(real(os.path.dirname(path)), os.path.basename(path)) for path in paths]
    return [real(path) if os.path.islink(path) else path for path in of_folders]


def names_by_place(path: str, names: Iterable[str]) -> dict[str, str]:
    """By absolute paths the names of a file at ``path``: from its folder, else from the working directory."""
    folder = Path(path).parent
    places = {}
    for name in names:
        places.setdefault(os.path.abspath(name), name)
    for name in names:
        places[os.path.abspath(folder / name)] = name
    return places
