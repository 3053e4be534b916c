"""Records of very many images, which are parts of files: arrays, which processes share, in place of a dict for each.

A dict takes 336 bytes in every process. Rows look like a list of dicts to whoever reads them, and make each when it is
asked for. A plug-in's layout may return them in place of a list (projects/LargeData/shard_index.py).
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

Places = range | np.ndarray  # (M,) int64, which rows of a table
_AT_ONCE = 2**16  # rows that become objects of Python's at a time


@dataclass(frozen=True)
class Table:
    """N images in S files of a folder.

    Attributes:
        folder: or a URL.
        names: (S,) of the files.
        file: (N,) integers, which file an image is in.
        columns: (N,) integers by field of a record: ``offset``, ``size``, and where there are classes ``label``.
        content: what tells names and places of the images from other ones.
    """

    folder: str
    names: Sequence[str]
    file: np.ndarray
    columns: Mapping[str, np.ndarray]
    content: str

    def file_name(self, number: int) -> str:
        return f"{self.folder}/{self.names[number]}"

    def check(self) -> None:
        """Raises UserError where the arrays lie in a file that has been changed since it was opened."""


class Rows(Sequence):
    """Some images of a table, a Sequence of records; a slice of it is one, too."""

    def __init__(self, table: Table, places: Places):
        self.table = table
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, key: int | slice) -> "dict | Rows":
        place = self.places[key]
        if isinstance(key, slice):
            return Rows(self.table, place)
        self.table.check()
        values = {field: int(column[place]) for field, column in self.table.columns.items()}
        return {"file_name": self.table.file_name(self.table.file[place]), **values}

    def take(self, places: np.ndarray) -> "Rows":
        """Those at (K,) int64 ``places``."""
        if isinstance(self.places, range):
            return Rows(self.table, self.places.start + self.places.step * places)
        return Rows(self.table, self.places[places])

    def column(self, field: str) -> np.ndarray | None:
        """(M,) integers; None where records have no such field."""
        return self._of_these(self.table.columns[field]) if field in self.table.columns else None

    def file_names(self) -> list[str]:
        """Of the files that have one of these images or more."""
        counts = np.bincount(self._of_these(self.table.file))
        return list(map(self.table.file_name, np.flatnonzero(counts)))

    def locations(self) -> Iterator[tuple[str, int]]:
        """File and offset of every image."""
        names = list(map(self.table.file_name, range(len(self.table.names))))
        files, offsets = self._of_these(self.table.file), self.column("offset")
        for start in range(0, len(self), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            of_part = map(names.__getitem__, files[part].tolist())
            yield from zip(of_part, offsets[part].tolist(), strict=True)

    @property
    def content(self) -> str:
        """What tells names and places of these images from other ones."""
        is_range = isinstance(self.places, range)
        places = str(self.places) if is_range else hashlib.sha256(self.places).hexdigest()
        return f"{self.table.content} {places}"

    def _of_these(self, column: np.ndarray) -> np.ndarray:
        """A view, where these are all rows in their order."""
        are_all = isinstance(self.places, range) and self.places == range(len(column))
        return column if are_all else column[np.asarray(self.places)]


class Joined(Sequence):
    """The records of several sequences, one after the other."""

    def __init__(self, parts: Sequence[Sequence[dict]]):
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, key: int | slice) -> dict | list[dict]:
        place = range(len(self))[key]
        if isinstance(key, slice):
            return [self[n] for n in place]
        number = bisect_right(self._ends, place)
        return self._parts[number][place - self._ends[number]]


def joined(sets: Sequence[Sequence[dict]]) -> Sequence[dict]:
    """The records of all sets in their order; a list, unless one of them has Rows."""
    if len(sets) == 1:
        return sets[0]
    has_rows = any(isinstance(records, Rows) for records in sets)
    return Joined(sets) if has_rows else list(chain.from_iterable(sets))
