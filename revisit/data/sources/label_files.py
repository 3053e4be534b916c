"""Files of labels with the names of their images."""

import logging
from pathlib import Path

from revisit.data.sources.file_names import in_normal_form
from revisit.data.sources.image_folders import load_folder, visible_files
from revisit.data.sources.records import grouped
from revisit.data.sources.split_files import NAMES_IN_LABELS
from revisit.errors import UserError, expect

from detectron2.utils.logger import log_first_n

MASKS = "masks are PNGs or TIFFs, because JPEG would change their ids"


def label_files(images: Path, labels: Path, *suffixes: str) -> dict[str, Path | None]:
    """By file name of an image below ``images``, in order: the file at its place below ``labels``, with one of the
    suffixes; None without one.

    Files of other images, such as those of a test set, may lie there too: a warning counts them only where some of
    these images have none.

    Raises:
        UserError: no images, no folder of labels, one file of labels for two images, two for one, or none for any.
    """
    expect(labels.is_dir(), f"folder of labels {labels} not found")
    suffix, form = suffixes[0], " or ".join(f"*{each}" for each in suffixes)
    names = [record["file_name"] for record in load_folder(images)]
    images_of = grouped(names, lambda name: _place(labels / Path(name).relative_to(images), suffix))
    given = _labels_by_place(labels, form, *suffixes)
    for path, of_path in images_of.items():
        is_clear = len(of_path) == 1 or path not in given
        expect(is_clear, f"{path} would be the labels of {of_path}: expected one image of each name")
    lost = sorted(given.keys() - images_of.keys())
    problem = f"{labels}: {len(lost)} of {len(given)} files of labels ({form}) belong to no image below {images}"
    expect(len(lost) < len(given), f"{problem}: expected the same names, and the same folders")
    lacking = images_of.keys() - given.keys()
    if lost and lacking:
        both = f"{problem}, such as {lost[0].name}, and {len(lacking)} of {len(images_of)} images have none"
        log_first_n(logging.WARNING, f"{both}: expected the same names", name=__name__, key="message")
    return {image: given.get(path) for path, of_path in images_of.items() for image in of_path}


def files_with_suffix(folder: Path, *suffixes: str) -> list[Path]:
    """All below a folder, sorted, with one of the suffixes in any case; without hidden ones and a Mac's extras."""
    return sorted(file for file in map(Path, visible_files(folder)) if file.suffix.lower() in suffixes)


def _labels_by_place(labels: Path, form: str, *suffixes: str) -> dict[Path, Path]:
    """Files of labels, by where they would lie with the first of the suffixes."""
    files = [file for file in files_with_suffix(labels, *suffixes) if file.name != NAMES_IN_LABELS]
    given = {_place(file, suffixes[0]): file for file in files}
    expect(len(given) == len(files), f"{labels} has two files of labels for one image: expected {form}, one for each")
    if not given:
        kinds = {file.suffix for file in map(Path, visible_files(labels)) if file.suffix}
        others = f", but {', '.join(sorted(kinds))}" if kinds else ""
        raise UserError(f"{labels} has no file of labels, {form}{others}: expected one for each image; {MASKS}")
    return given


def _place(file: Path, suffix: str) -> Path:
    """Where labels of a name lie, however an archive has spelled it."""
    return Path(in_normal_form(str(file.with_suffix(suffix))))
