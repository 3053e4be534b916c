"""Readers of plain images, a folder, a list of paths or one folder per class, and of split files, names one a line.

A record is ``file_name`` and, of class folders, ``label``.
"""

import os
from collections import Counter
from pathlib import Path

from revisit.data.file_formats import CONVERT, UNREAD_SUFFIXES, described, is_visible, warn_of_unread_formats
from revisit.data.reader import SUFFIXES
from revisit.errors import UserError, expect
from revisit.files import written_whole

Records = list[dict]


def load_folder(path: Path) -> Records:
    """Every image file below ``path``, in sorted order; one warning counts the images in formats that are not read."""
    files, others = find_images(path)
    warn_of_unread_formats(path, others)
    return [{"file_name": file} for file in files]


def find_images(path: Path) -> tuple[list[str], Counter[str]]:
    """The image files below ``path``, sorted, and the suffixes of those in formats that are not read.

    Hidden files and folders, and what a Mac adds to archives, hold no images.

    Raises:
        UserError: no folder, or no image in it.
    """
    expect(path.is_dir(), f"folder of images {path} not found")
    files, others, visited = [], Counter(), set()
    for folder, subfolders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in visited:  # a loop of links
            subfolders.clear()
            continue
        visited.add(real)
        # Sorted: which of two links to one folder counts must not depend on the file system.
        subfolders[:] = sorted(filter(is_visible, subfolders))
        for name in filter(is_visible, names):
            suffix = os.path.splitext(name)[1].lower()
            if suffix in SUFFIXES:
                files.append(os.path.join(folder, name))
            elif suffix in UNREAD_SUFFIXES:
                others[suffix] += 1
    left_out = f"; it has {described(others)}, {CONVERT}" if others else ""
    expect(files, f"no images in {path}: expected files ending in {', '.join(sorted(SUFFIXES))}{left_out}")
    return sorted(files), others


def load_class_folders(path: Path, classes: tuple[str, ...] = ()) -> Records:
    """Images in one sub-folder per class; ``label`` counts ``classes``, or the sorted folder names."""
    expect(path.is_dir(), f"folder of images {path} not found")
    classes = classes or class_folders(path)
    expect(classes, f"no class folders in {path}: expected one sub-folder of images per class")
    found = [find_images(path / name) for name in classes]
    warn_of_unread_formats(path, sum((others for _, others in found), Counter()))
    return [{"file_name": file, "label": label} for label, (files, _) in enumerate(found) for file in files]


def class_folders(path: Path) -> tuple[str, ...]:
    """The names of a folder's sub-folders, sorted; none of a folder that is not there."""
    folders = (entry.name for entry in os.scandir(path) if entry.is_dir()) if path.is_dir() else ()
    return tuple(sorted(filter(is_visible, folders)))


def class_folders_metadata(path: Path) -> dict:
    """The classes of a folder of class folders."""
    return {"thing_classes": list(classes)} if (classes := class_folders(path)) else {}


def load_list(path: Path) -> Records:
    """Images named by a text file, one path a line; empty lines and lines that start with # are skipped."""
    expect(path.is_file(), f"list of images {path} not found: expected a text file with one image path a line")
    lines = map(str.strip, read_lines(path, "list of images"))
    names = [line for line in lines if line and not line.startswith("#")]
    expect(names, f"list of images {path} names no image: expected one path a line")
    missing = next((name for name in names if not os.path.isfile(path.parent / name)), None)
    expect(not missing, f"{path} names {missing}, which is not a file (seen from {path.parent})")
    return [{"file_name": str(path.parent / name)} for name in names]


def existing(records: Records) -> Records:
    """The records. Raises UserError, with how many, if files of images are not there."""
    missing = [record["file_name"] for record in records if not os.path.isfile(record["file_name"])]
    if missing:
        raise UserError(f"{len(missing)} of {len(records)} images not found, the first is {missing[0]}")
    return records


def read_split(path: Path) -> list[str]:
    """Names of images, one a line; blanks around them, empty lines and the kind of line end mean nothing.

    Raises:
        UserError: a file that is missing, is no text, names nothing, or names an image twice.
    """
    expect(path.is_file(), f"split file {path} not found: expected one image name a line (datasets/README.md)")
    names = [line for line in map(str.strip, read_lines(path, "split file")) if line]
    expect(names, f"split file {path} is empty: expected one image name a line")
    ((name, count),) = Counter(names).most_common(1)
    expect(count == 1, f"split file {path} names {name} {count} times: expected every image once")
    return names


def read_lines(path: Path, what: str) -> list[str]:
    """The lines of a text file; the UserError of a file in another encoding calls it ``what``."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{what} {path} is not a text file in UTF-8") from error


def check_split(path: Path, names: list[str]) -> None:
    """Raises UserError if there is a split file already and it names other images."""
    if path.exists() and set(read_split(path)) != set(names):
        found = f"split file {path} is there already and names other images than the {len(names)} to be written"
        raise UserError(f"{found}: move it away, or choose another split")


def write_split(path: Path, names: list[str]) -> None:
    """Write a split, sorted, whole or not at all; see check_split."""
    check_split(path, names)
    with written_whole(path) as temporary:
        temporary.write_text("".join(f"{name}\n" for name in sorted(names)))
