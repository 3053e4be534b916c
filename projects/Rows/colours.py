"""What the points of an atlas may be coloured by: columns of a table of embeddings and of a user's CSV file."""

import csv
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from projects.Rows.row_table import RowTable
from revisit.boxes.coco_files import folder_of
from revisit.data.sources.file_names import names_by_place
from revisit.errors import UserError, expect
from revisit.markdown import CsvDicts

CLUSTERS = 12
SEED = 0
MOST_VALUES = 40  # of a column; the rarer ones are "other"
OTHER = "other"
FILE = "file_name"


class Column(NamedTuple):
    """A column by its name: which of its values each row has."""

    name: str
    values: list[str]  # the most frequent first
    codes: list[int]  # (N,), places in values


def columns_of(table: RowTable, extra: Path | None = None) -> list[Column]:
    """Class, cluster and folder of each row where these say anything, and what a CSV file says of the images."""
    columns = {"class": table.classes.tolist(), "cluster": _clusters(table.rows), "folder": _folders(table)}
    if extra:
        columns |= _of_file(extra, table)
    made = [column(name, values) for name, values in columns.items()]
    return [each for each in made if len(each.values) > 1 or each.name == "cluster"]


def column(name: str, values: list[str]) -> Column:
    """Of a value for each row; all but the MOST_VALUES most frequent are OTHER."""
    distinct, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    ranked = distinct[order].tolist()
    shown = ranked[:MOST_VALUES]
    places = {value: place for place, value in enumerate(shown)}
    if len(ranked) > len(shown):
        shown.append(OTHER)
    return Column(name, shown, [places.get(value, len(shown) - 1) for value in values])


def _clusters(rows: np.ndarray) -> list[str]:
    """By k-means: ``cluster 1`` and so on."""
    from sklearn.cluster import KMeans  # not at start-up: it takes a second

    count = min(CLUSTERS, len(np.unique(rows, axis=0)))
    labels = KMeans(count, n_init=3, random_state=SEED).fit_predict(rows)
    return [f"cluster {label + 1}" for label in labels.tolist()]


def _folders(table: RowTable) -> list[str]:
    """Of each file, below the folder that all share."""
    files = table.files.tolist()
    shared = folder_of(table.records)
    return [os.path.relpath(os.path.dirname(os.path.abspath(file)), shared) for file in files]


def _of_file(path: Path, table: RowTable) -> dict[str, list[str]]:
    """The columns of a CSV file with ``file_name``: a path, from the folder of the CSV file or of the images or from
    here, or the file's own name where no other file of the table has it.

    Raises:
        UserError: no such column, none of the table's files, or two lines of one file that differ.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            lines = list(CsvDicts(file))
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"--table {path} cannot be read ({error}): expected a CSV file") from error
    names = list(lines[0]) if lines else []
    expect(FILE in names, f"--table {path} has the columns {names}: expected {FILE} and others")
    by_name: dict[str, dict] = {}
    for line in lines:
        before = by_name.setdefault(line[FILE], line)
        expect(before == line, f"--table {path} says two things of {line[FILE]}: expected one line for each file")
    files = table.files.tolist()
    places = names_by_place(str(path), by_name)
    shared = folder_of(table.records)
    of_base = Counter(os.path.basename(file) for file in {*files})

    def line_of(file: str) -> dict:
        place = os.path.abspath(file)
        base, below = os.path.basename(file), os.path.relpath(place, shared)
        names = (file, places.get(place, ""), below, base if of_base[base] == 1 else "")
        return next((by_name[name] for name in names if name in by_name), {})

    rows = list(map(line_of, files))
    expect(any(rows), f"--table {path} names none of the {len(files)} files, such as {files[0]}")
    return {name: [row.get(name) or "" for row in rows] for name in names if name != FILE}
