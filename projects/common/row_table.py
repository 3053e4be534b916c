"""A table of embeddings: a unit row for each image or box, what it is of, and which network made it."""

import csv
import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projects.common.parts import save_arrays
from revisit.errors import UserError, expect, first_line
from revisit.files import written_whole

TABLE = "embeddings.npz"
COLUMNS = ("file_name", "x0", "y0", "x1", "y1", "class")


class RowTable(NamedTuple):
    """N embeddings of images, or of boxes in them."""

    rows: np.ndarray  # (N, C) float32, of length 1
    files: np.ndarray  # (N,) str, of the images
    boxes: np.ndarray  # (N, 4) float32, x0, y0, x1, y1 px; of an image its whole
    classes: np.ndarray  # (N,) str, "" where there is none
    about: dict[str, Any]  # weights, network, sizes, flags of the weights; ``of`` is image or box

    @property
    def names(self) -> list[str]:
        """What a person calls each row: the file, and the box in whole px where rows are boxes."""
        if self.about["of"] == "image":
            return self.files.tolist()
        return [
            f"{file} [{' '.join(map(str, box))}]"
            for file, box in zip(self.files.tolist(), self.boxes.round().astype(int).tolist(), strict=True)
        ]

    def of(self, places: np.ndarray) -> "RowTable":
        """The rows at these places, or of this mask."""
        return RowTable(self.rows[places], self.files[places], self.boxes[places], self.classes[places], self.about)


def save_table(path: Path, table: RowTable) -> None:
    """Write a table, whole or not at all, in numpy's format."""
    arrays = table._asdict() | {"about": np.array(json.dumps(table.about))}
    save_arrays(path, arrays)


def load_table(place: Path) -> RowTable:
    """The table of a file, or of TABLE in a folder. Raises UserError where there is none."""
    path = place / TABLE if place.is_dir() else place
    expect(path.is_file(), f"{place} has no {TABLE}: expected the output of tools/embed.py")
    try:
        with np.load(path) as content:
            arrays = dict(content)
        about = json.loads(str(arrays.pop("about")))
        return RowTable(**arrays, about=about)
    except (ValueError, KeyError, OSError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{path} is no table of tools/embed.py ({first_line(error)}): embed the images again"
        ) from error


def save_csv(path: Path, table: RowTable) -> None:
    """Write a line for each row: COLUMNS, then its numbers v0, v1 and so on."""
    numbers = [f"v{n}" for n in range(table.rows.shape[1])]
    with written_whole(path) as temporary, open(temporary, "w", newline="", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *numbers])
        for name, box, label, row in zip(table.files, table.boxes, table.classes, table.rows, strict=True):
            writer.writerow([name, *box.tolist(), label, *row.tolist()])


def save_parquet(path: Path, table: RowTable) -> None:
    """Write COLUMNS and ``embedding``, a list of numbers; ``about`` is the file's metadata. Raises UserError without
    pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError("--format parquet needs pyarrow: pip install pyarrow, or take npz or csv") from error
    sides = dict(zip(COLUMNS[1:5], table.boxes.T, strict=True))
    width = table.rows.shape[1]
    rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(table.rows.ravel()), width)
    columns = {"file_name": table.files, **sides, "class": table.classes, "embedding": rows}
    content = pyarrow.table(columns).replace_schema_metadata({"about": json.dumps(table.about)})
    with written_whole(path) as temporary:
        parquet.write_table(content, temporary)
