"""Readers of plain images: a folder, a list of paths, one folder per class. A record is ``file_name``, ``label``."""

import os
from pathlib import Path

from revisit.data.reader import SUFFIXES
from revisit.data.split_files import read_lines
from revisit.errors import UserError

Records = list[dict]


def load_folder(path: Path) -> Records:
    """Every image file below ``path``, in sorted order."""
    _check_folder(path)
    files, visited = [], set()
    for folder, subfolders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in visited:  # a loop of links
            subfolders.clear()
            continue
        visited.add(real)
        subfolders.sort()  # which of two links to one folder counts must not depend on the file system
        files += [os.path.join(folder, n) for n in names if os.path.splitext(n)[1].lower() in SUFFIXES]
    if not files:
        raise UserError(f"no images in {path}: expected files ending in {', '.join(sorted(SUFFIXES))}")
    return [{"file_name": file} for file in sorted(files)]


def load_class_folders(path: Path, classes: tuple[str, ...] = ()) -> Records:
    """Images in one sub-folder per class; ``label`` counts ``classes``, or the sorted folder names."""
    _check_folder(path)
    classes = classes or class_folders(path)
    if not classes:
        raise UserError(f"no class folders in {path}: expected one sub-folder of images per class")
    return [{**record, "label": label} for label, name in enumerate(classes) for record in load_folder(path / name)]


def class_folders(path: Path) -> tuple[str, ...]:
    """The names of a folder's sub-folders, sorted; none of a folder that is not there."""
    return tuple(sorted(entry.name for entry in os.scandir(path) if entry.is_dir())) if path.is_dir() else ()


def class_folders_metadata(path: Path) -> dict:
    """The classes of a folder of class folders."""
    return {"thing_classes": list(classes)} if (classes := class_folders(path)) else {}


def load_list(path: Path) -> Records:
    """Images named by a text file, one path a line; empty lines and lines that start with # are skipped."""
    if not path.is_file():
        raise UserError(f"list of images {path} not found: expected a text file with one image path a line")
    lines = map(str.strip, read_lines(path, "list of images"))
    names = [line for line in lines if line and not line.startswith("#")]
    if not names:
        raise UserError(f"list of images {path} names no image: expected one path a line")
    missing = next((name for name in names if not (path.parent / name).is_file()), None)
    if missing:
        raise UserError(f"{path} names {missing}, which is not a file (seen from {path.parent})")
    return [{"file_name": str(path.parent / name)} for name in names]


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise UserError(f"folder of images {path} not found")
