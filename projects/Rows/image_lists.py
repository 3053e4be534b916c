"""A table of images, which the commands here read, and lists of images, which they write."""

import os
from collections import Counter
from pathlib import Path

import numpy as np

from projects.Rows.row_table import FILE_SIZES, RowTable, load_table
from revisit.data.sources.catalog import get_records
from revisit.data.sources.file_names import expect_file_names
from revisit.data.sources.image_folders import require_files
from revisit.data.sources.split_files import text_of_names
from revisit.data.sources.subsets import is_looked_at
from revisit.errors import expect


def images_of(place: Path) -> RowTable:
    """A table of tools/embed.py with a row for each image.

    Raises:
        UserError: there is none; its rows are of boxes, or several of one file; a file is not there any more, has
            changed, or has a name that no list of images holds.
    """
    table = load_table(place)
    expect(table.about["of"] == "image", f"{place} has rows of boxes: expected those of images, without --boxes")
    file, count = Counter(table.files.tolist()).most_common(1)[0]
    expect(count == 1, f"{place} has {count} rows of {file}: expected one for each file")
    require_files(table.records, f" of {place}")
    stated = table.about[FILE_SIZES]  # "" of an earlier version
    expect(
        stated in ("", table.file_sizes()),
        f"{place}: files of its images have other sizes than when they were embedded: embed these again",
    )
    text_of_names(full_names(table).tolist(), f"an image of {place}")
    return table


def full_names(table: RowTable) -> np.ndarray:
    """(N,) str: the files' names, which hold wherever a list of them lies."""
    return np.array([os.path.abspath(file) for file in table.files.tolist()])


def labelled_in(table: RowTable, name: str) -> np.ndarray:
    """(N,) bool, which images of a table a data set has labels of, or was found empty; none where ``name`` is "".

    Raises:
        UserError: images of the data set have no files of their own; it has no labelled image, or one that the table
            lacks.
    """
    if not name:
        return np.zeros(len(table.rows), bool)
    records = get_records(name)
    expect_file_names(records, f"--labelled {name}")
    labelled = [os.path.realpath(record["file_name"]) for record in records if is_looked_at(record)]
    expect(bool(labelled), f"--labelled {name} has no labelled image")
    places = {os.path.realpath(file): place for place, file in enumerate(table.files.tolist())}
    missing = [file for file in labelled if file not in places]
    way_out = "embed all images, those with labels too"
    if table.about.get("left out"):
        way_out = "copy those again that could not be read, or remove them with their labels, and embed all images"
    expect(
        not missing,
        f"the table lacks {len(missing)} of {len(labelled)} images of --labelled {name}, such as {missing[:1]}: "
        f"{way_out}",
    )
    is_in = np.zeros(len(table.rows), bool)
    is_in[[places[file] for file in labelled]] = True
    return is_in
