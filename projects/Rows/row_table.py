"""A table of embeddings: a unit row for each image or box, what it is of, and which network made it."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from revisit.arrays import read_arrays
from revisit.data.images.deep_images import format_of
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.sources.records import Records, fingerprint
from revisit.errors import UserError, expect, first_few, translated, without_secrets
from revisit.files import is_url, written_whole
from revisit.jobs.parts import save_arrays
from revisit.keys import short_repr
from revisit.markdown import write_csv
from revisit.plugins import require_package

TABLE = "embeddings.npz"
NEEDS_PYARROW = "--format parquet needs pyarrow: pip install pyarrow, or take npz or csv"
FILE_SIZES = "file sizes"  # what a table says of its files: see ``file_sizes``
# Types of what it says.
ABOUT = {"of": str, "network": str, "digest": str, "flags": dict, "options": dict, FILE_SIZES: str}
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

    @property
    def records(self) -> Records:
        """The images as a data set."""
        return [{"file_name": file} for file in self.files.tolist()]

    @property
    def pixels(self) -> PixelFormat:
        """Of its images: as they were embedded."""
        return format_of(self.about.get("flags", {}), self.records)

    def file_sizes(self) -> str:
        """A digest of how many bytes its files have now, of at most COMPARED rows."""
        (digests,) = fingerprint(self.records, labels=False)
        return str(digests["sizes"])

    def of(self, places: np.ndarray) -> "RowTable":
        """The rows at these places, or of this mask."""
        return RowTable(self.rows[places], self.files[places], self.boxes[places], self.classes[places], self.about)


def save_table(path: Path, table: RowTable) -> None:
    """Write a table, whole or not at all, in numpy's format."""
    arrays = table._asdict() | {"about": np.array(without_secrets(json.dumps(table.about)))}
    save_arrays(path, arrays)


def load_table(place: Path) -> RowTable:
    """The table of a file, or of TABLE in a folder. What it says is data: nothing in it is loaded, fetched or run.

    Raises UserError where there is none.
    """
    path = place / TABLE if place.is_dir() else place
    expect(path.is_file(), f"{place} has no {TABLE}: expected the output of tools/embed.py")
    try:
        with translated("its arrays", content=True):
            arrays = read_arrays(path)
            found = ", ".join(sorted(arrays)[:9])
            expect(arrays.keys() == set(RowTable._fields), f"it has {found}: expected {', '.join(RowTable._fields)}")
            table = RowTable(**arrays | {"about": _about_in(str(arrays["about"]))})
            _check_arrays(table)
    except UserError as error:
        raise UserError(f"{path} is no table of tools/embed.py ({error}): embed the images again") from error
    return table


def _about_in(text: str) -> dict[str, Any]:
    """Raises UserError for facts of other types than tools/embed.py writes, ValueError for what is no JSON."""
    try:
        about = json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON of too many levels") from error
    expect(isinstance(about, dict), "it says nothing about its rows")
    about = {name: kind() for name, kind in ABOUT.items()} | about
    for name, kind in ABOUT.items():
        expect(type(about[name]) is kind, f"{name} is {short_repr(about[name])}")
    expect(about["of"] in ("image", "box"), f"it has rows of {short_repr(about['of'])}")
    return about


def _check_arrays(table: RowTable) -> None:
    """Raises UserError for arrays that are no rows."""
    count = len(table.files)
    forms = {"rows": (2, "f"), "files": (1, "U"), "boxes": (2, "f"), "classes": (1, "U")}
    for name, (axes, kind) in forms.items():
        array = getattr(table, name)
        is_one = (array.ndim, array.dtype.kind) == (axes, kind) and len(array) == count
        expect(is_one, f"{name} are {array.dtype} {array.shape}, of {count} files")
    are_numbers = table.boxes.shape[1] == 4 and bool(np.isfinite(table.rows).all() and np.isfinite(table.boxes).all())
    expect(are_numbers, "rows or boxes are no numbers")
    elsewhere = [name for name in table.files.tolist() if is_url(name)]
    expect(not elsewhere, f"it names {elsewhere[:1]}, which is no file here")


def save_csv(path: Path, table: RowTable) -> None:
    """Write a line for each row: COLUMNS, then its numbers v0, v1 and so on."""
    numbers = [f"v{n}" for n in range(table.rows.shape[1])]
    lines = (
        [name, *box.tolist(), label, *row.tolist()]
        for name, box, label, row in zip(table.files, table.boxes, table.classes, table.rows, strict=True)
    )
    with written_whole(path) as temporary, open(temporary, "w", newline="", errors="surrogateescape") as file:
        write_csv(file, [*COLUMNS, *numbers], lines)


def save_parquet(path: Path, table: RowTable) -> None:
    """Write COLUMNS and ``embedding``, a list of numbers; ``about`` is the file's metadata.

    Raises UserError without pyarrow, or for a name of a file that is no text in UTF-8.
    """
    odd = [name for name in table.files.tolist() if name.encode(errors="ignore").decode() != name]
    expect(not odd, f"parquet holds names in UTF-8, not {first_few(odd)}: rename the files, or take npz or csv")
    pyarrow, parquet = (require_package(name, NEEDS_PYARROW) for name in ("pyarrow", "pyarrow.parquet"))
    sides = dict(zip(COLUMNS[1:5], table.boxes.T, strict=True))
    width = table.rows.shape[1]
    rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(table.rows.ravel()), width)
    columns = {"file_name": table.files, **sides, "class": table.classes, "embedding": rows}
    content = pyarrow.table(columns).replace_schema_metadata({"about": without_secrets(json.dumps(table.about))})
    with written_whole(path) as temporary:
        parquet.write_table(content, temporary)
