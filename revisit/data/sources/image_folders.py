"""Layouts of plain images: a folder, a list of paths, or one folder per class.

A record is ``file_name`` and, of class folders, ``label``.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import chain
from pathlib import Path

from revisit.data.images.deep_images import deep_images
from revisit.data.images.image_bytes import first_bytes
from revisit.data.images.opening import JPEG_MAGIC, PNG_MAGIC, SUFFIXES, TIFF_MAGICS
from revisit.data.sources.file_names import other_spellings
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout
from revisit.data.sources.records import Records, grouped, sample
from revisit.data.sources.split_files import read_names_of_images, text_of_names
from revisit.errors import UserError, did_you_mean, expect, first_few
from revisit.files import write_whole

from detectron2.utils.logger import log_first_n

# Photographs in formats that PIL reads by a plugin, if at all.
_UNREAD = """
.arw .avif .cr2 .cr3 .dcm .dds .dib .dng .emf .eps .exr .fits .hdr .heic .heif .hif .icns .ico .j2k .jp2 .jpx
.jxl .jxr .nef .orf .pam .pcx .pef .pfm .pict .psd .qoi .raf .ras .raw .rw2 .sgi .srw .svg .tga .wmf .xbm .xcf
.xpm
"""
UNREAD_SUFFIXES = frozenset(_UNREAD.split())
CONVERT = (
    "which are not read: convert or rename them, or install pillow-heif for .heic, Pillow from 11.3 on for .avif "
    "and revisit-detectron2[dicom] for .dcm"
)
SEPARATE = "which are images only where a folder has no others: move them to one of their own"
NO_SUFFIX = "without a suffix"
# Folders, in small letters, of a Mac's archives; of Synology's and QNAP's disks, where two have thumbnails; of Windows
# and of Linux. None holds photographs that somebody has put there.
OF_SYSTEMS = frozenset(
    ("__macosx", "@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@tmp", ".@__thumb")
    + ("$recycle.bin", "recycler", "system volume information", "lost+found")
)


def load_folder(path: Path) -> Records:
    """Every image file below ``path``, sorted; one warning counts the images in formats that are not read, or not next
    to these.

    Hidden files and folders, and those of OF_SYSTEMS, hold no images.

    Raises:
        UserError: no folder, or no image in it.
    """
    expect(not path.is_file(), f"{path} is a file: expected a folder of images, or list:FILE of names of images")
    if not path.is_dir():
        siblings = [other.name for other in path.parent.glob("*") if other.is_dir()]
        raise UserError(f"folder of images {path} not found{did_you_mean(path.name, siblings)}")
    by_suffix = grouped(visible_files(path), suffix_of)
    read = {suffix: by_suffix.pop(suffix) for suffix in SUFFIXES & by_suffix.keys()}
    further = deep_images().images_among(by_suffix, alone=not read)
    files = list(chain.from_iterable((*read.values(), *further.values())))
    left_out = _left_out({suffix: paths for suffix, paths in by_suffix.items() if suffix not in further})
    expect(files, f"no images in {path}, files ending in {', '.join(sorted(SUFFIXES))}{left_out}")
    if left_out:
        log_first_n(logging.WARNING, f"{path}{left_out}", name=__name__, key="message")
    return [{"file_name": file} for file in sorted(files)]


def suffix_of(file: str) -> str:
    """In small letters; none of what ends in a number, as names of DICOM files do, each of which would be a format."""
    suffix = os.path.splitext(file)[1].lower()
    return "" if suffix[1:].isdecimal() else suffix


def visible_files(path: Path) -> Iterator[str]:
    """All files below a folder but hidden ones, those of links to folders too, each folder once: where it lies itself,
    else by the first of its links. Raises UserError for a folder that cannot be listed."""
    visited: set[str] = set()
    links = [os.fspath(path)]
    while links:
        # The first: which of two links to one folder counts must not depend on the file system.
        for folder, subfolders, names in os.walk(heappop(links), onerror=_refuse):
            real = os.path.realpath(folder)
            if real in visited:  # perhaps a loop of links
                subfolders.clear()
                continue
            visited.add(real)
            subfolders[:] = filter(is_visible, subfolders)
            for subfolder in filter(os.path.islink, (os.path.join(folder, name) for name in subfolders)):
                heappush(links, subfolder)
            yield from (os.path.join(folder, name) for name in filter(is_visible, names))


def _refuse(error: OSError) -> None:
    """Raises UserError: what is in it would be left out without a word."""
    problem = f"{error.filename} cannot be listed ({error.strerror})"
    raise UserError(f"{problem}: expected a folder that you may read") from error


def _left_out(files: dict[str, list[str]]) -> str:
    """In words how many files are images that are not read, by suffix; "" where there are none."""
    few = {suffix: sample(paths, 8) for suffix, paths in files.items()}
    separate = [suffix for suffix, paths in few.items() if any(map(_would_be_read, paths))]
    unread = [suffix for suffix in files if suffix not in separate and _is_unread(suffix, few[suffix])]
    parts = []
    for suffixes, remedy in ((unread, CONVERT), (separate, SEPARATE)):
        counted = sorted((suffix or NO_SUFFIX, len(files[suffix])) for suffix in suffixes)
        counts = [f"{count:,} {suffix}" for suffix, count in counted]
        parts += [f"{' and '.join(counts)}, {remedy}"] if counts else []
    return f": left out {'; '.join(parts)}" if parts else ""


def _would_be_read(path: str) -> bool:
    """Whether a plug-in reads a file where it is alone."""
    return any(deep_images().images_among({suffix_of(path): [path]}, alone=True).values())


def _is_unread(suffix: str, paths: list[str]) -> bool:
    """Whether a suffix is one of images, or one of a few files begins as an image does."""
    begin = (JPEG_MAGIC, PNG_MAGIC, *TIFF_MAGICS)
    return suffix in UNREAD_SUFFIXES or any(first_bytes(path).startswith(begin) for path in paths)


def load_class_folders(path: Path, classes: tuple[str, ...] = ()) -> Records:
    """Images in one sub-folder per class; ``label`` counts ``classes``, or the sorted folder names. A warning counts
    images next to these."""
    records = load_folder(path)
    by_class: dict[str, list[str]] = {name: [] for name in classes or class_folders(path)}
    expect(by_class, f"no class folders in {path}: expected one sub-folder of images per class")
    without = []
    for record in records:
        name = record["file_name"][len(f"{path}/") :].partition("/")[0]
        by_class.get(name, without).append(record["file_name"])
    if without and not classes:
        line = f"{path}: {len(without):,} of {len(records):,} images are in no class folder, such as {without[0]}"
        log_first_n(logging.WARNING, f"{line}: left out", name=__name__, key="message")
    empty = [str(path / name) for name, files in by_class.items() if not files]
    expect(not empty, f"no images in {first_few(empty)}")
    return [{"file_name": file, "label": label} for label, files in enumerate(by_class.values()) for file in files]


def is_visible(name: str) -> bool:
    """False of hidden files and folders, and of folders that systems add: to archives, for thumbnails, of what was
    deleted."""
    return not name.startswith(".") and name.lower() not in OF_SYSTEMS


def class_folders(path: Path) -> tuple[str, ...]:
    """The names of a folder's sub-folders, sorted; none of a folder that is not there."""
    folders = (entry.name for entry in os.scandir(path) if entry.is_dir()) if path.is_dir() else ()
    return tuple(sorted(filter(is_visible, folders)))


def class_folders_metadata(path: Path) -> dict:
    """The classes of a folder of class folders."""
    return {"thing_classes": list(classes)} if (classes := class_folders(path)) else {}


def load_list(path: Path) -> Records:
    """Images named by a text file, one path a line; empty lines and lines that start with # are skipped."""
    names = [name for name in read_names_of_images(path, "list of images") if not name.startswith("#")]
    expect(names, f"list of images {path} names no image: expected one path a line")
    counts = Counter(names)
    again = [name for name, count in counts.items() if count > 1]
    if again:
        line = f"list of images {path}: {len(names) - len(counts):,} of {len(names):,} lines name an image again"
        log_first_n(logging.WARNING, f"{line}, such as {again[0]}: it counts as often", name=__name__, key="message")
    return require_files([{"file_name": str(path.parent / name)} for name in names], f" by {path}")


def write_list(path: Path, names: Iterable[str]) -> None:
    """Write what ``load_list`` reads. Raises UserError for a name that no line holds."""
    write_whole(path, text_of_names(names, "an image"))


def require_files(records: Records, named: str = "") -> Records:
    """The records. Raises UserError, with how many and who ``named`` them, if files of images are not there."""
    missing = [record["file_name"] for record in records if not os.path.isfile(record["file_name"])]
    if missing:
        other = next(filter(os.path.isfile, other_spellings(missing[0])), "")
        spelled = f", where {ascii(os.path.basename(other))} is" if other else ""
        problem = f"{len(missing)} of {len(records)} images{named} not found, the first is {missing[0]!r}"
        raise UserError(problem + spelled)
    return records


for _layout in (
    LabelLayout("folder", "PATH", load_folder),
    LabelLayout("list", "FILE", load_list),
    LabelLayout("class_folders", "PATH", load_class_folders, class_folders_metadata),
):
    LABEL_LAYOUT_REGISTRY.register(_layout)
