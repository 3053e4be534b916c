"""Arrays of many rows, made in parts, which whole files keep, so that an interrupted command continues."""

import json
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from revisit.arrays import read_arrays
from revisit.errors import UserError, expect, first_few
from revisit.files import UNFINISHED, written_whole
from revisit.jobs.processes import HERE
from revisit.jobs.runner import CONTINUES, Parts, Runner

SECONDS = 1.0  # of work that a file is at least, where the next part follows: a killed process loses it
FIRST_ROWS, LENGTHS = "first rows", "lengths"  # in a file: (parts,) and (parts, arrays) int64
# Names of parts, of their settings, and of both while another process is writing them.
_OWN = re.compile(rf"(\d{{9,}}-\d{{9,}}|settings)(\.[0-9a-f]{{8}})?\.(npz|json)({re.escape(UNFINISHED)})?")
Arrays = dict[str, np.ndarray]  # by name, a row for each thing that was looked at


class Work(NamedTuple):
    """What is made of many rows."""

    title: str  # of its progress
    count: int  # of rows
    size: int  # rows of a part
    compute: Callable[[range], Arrays]  # of the rows of a part; can be pickled where other processes make parts


@contextmanager
def in_parts(work: Work, folder: Path, runner: Runner = HERE) -> Iterator[Arrays]:
    """What is made of all rows, in order, for a block that saves it; then the parts in ``folder`` are deleted.

    Raises:
        SystemExit: in a process that has made its share, where another one puts the parts together.
        UserError: another command makes these parts, or something removes them.
    """
    starts = range(0, work.count, work.size)
    present = partial(_starts_in, work, folder)
    make = partial(_make, work, folder)
    lock = folder.with_suffix(".lock")
    with runner.in_charge(folder.with_suffix(".in_charge")):
        own_folder(folder)
        runner.run(Parts(work.title, starts, present, make, str(folder), lock))
        parts = _read(_files_in(folder))
        lost = len(starts) - len(parts.keys() & {*starts})
        expect(not lost, f"{folder} has lost {lost} of {len(starts)} parts, removed meanwhile: {CONTINUES}")
        yield _joined([parts[start] for start in starts])
        shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)


def own_folder(folder: Path) -> None:
    """Make the folder of parts, which is deleted in the end with all that it has. Raises UserError for files of which
    none is of parts or of their settings: the folder is somebody's."""
    folder.mkdir(exist_ok=True)
    names = sorted(path.name for path in folder.iterdir())
    expect(
        not names or any(map(_OWN.fullmatch, names)),
        f"{folder} is for parts of the work, and has {first_few(names)}: give another --output, or another name to "
        "that folder",
    )


def _files_in(folder: Path) -> dict[Path, tuple[int, int]]:
    """The files, and the rows that each is of: the first, and the one after the last."""
    names = {path: path.stem.partition("-") for path in folder.glob("*-*.npz")}
    return {path: (int(start), int(stop)) for path, (start, _, stop) in names.items()}


def _starts_in(work: Work, folder: Path) -> Collection[int]:
    """The first rows of the parts that are in files."""
    rows = _files_in(folder).values()
    return {start for first, stop in rows for start in range(first, stop, work.size)}


def _make(work: Work, folder: Path, numbers: Sequence[int]) -> Iterator[int]:
    """Neighbours that are made within SECONDS go to one file: 10,000 files take seconds, of a shared disk minutes."""
    waiting: dict[int, Arrays] = {}
    began = monotonic()
    for number, following in zip_longest(numbers, numbers[1:]):
        start = number * work.size
        rows = range(start, min(start + work.size, work.count))
        waiting[start] = work.compute(rows)
        if following != number + 1 or monotonic() - began >= SECONDS:
            _write(folder / f"{min(waiting):09d}-{rows.stop:09d}.npz", waiting)
            yield len(waiting)
            waiting, began = {}, monotonic()


def _write(path: Path, parts: dict[int, Arrays]) -> None:
    """Parts by their first rows, into one file: their arrays one after the other, and how long each one is."""
    every = list(parts.values())
    lengths = [[len(part[name]) for name in every[0]] for part in every]
    about = {FIRST_ROWS: np.array(list(parts)), LENGTHS: np.array(lengths)}
    save_arrays(path, _joined(every) | about, lasting=False)


def save_arrays(path: Path, arrays: Arrays, *, lasting: bool = True) -> None:
    """Write arrays by name, whole or not at all; see ``written_whole``."""
    with written_whole(path, lasting=lasting) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


def _read(files: Iterable[Path]) -> dict[int, Arrays]:
    """Parts by their first rows. Raises UserError for a file that a power cut has damaged."""
    parts: dict[int, Arrays] = {}
    for file in files:
        try:
            parts |= _parts_of(read_arrays(file))
        except Exception as error:  # whatever damaged bytes trip
            file.unlink(missing_ok=True)
            raise UserError(f"{file} was damaged, and is deleted now: {CONTINUES}") from error
    return parts


def _parts_of(arrays: Arrays) -> dict[int, Arrays]:
    """What ``_write`` was given."""
    starts = arrays.pop(FIRST_ROWS)
    lengths = arrays.pop(LENGTHS)
    ends = lengths.cumsum(axis=0)[:-1]
    pieces = map(np.split, arrays.values(), ends.T)
    of_parts = zip(*pieces, strict=True)
    return {int(start): dict(zip(arrays, part, strict=True)) for start, part in zip(starts, of_parts, strict=True)}


def _joined(parts: Sequence[Arrays]) -> Arrays:
    """The arrays of all parts, one after the other; those without rows need not know a width."""
    joined = {}
    for name, first in parts[0].items():
        with_rows = [part[name] for part in parts if len(part[name])]
        joined[name] = np.concatenate(with_rows or [first])
    return joined


def as_lines(values: list[Any]) -> np.ndarray:
    """Values that JSON has, a line each, as an array of bytes: what is no row of numbers."""
    text = "".join(f"{json.dumps(value)}\n" for value in values)  # ASCII
    return np.frombuffer(text.encode(), np.uint8)


def of_lines(lines: np.ndarray) -> list[Any]:
    """What ``as_lines`` was given, of one part or of several."""
    return [json.loads(line) for line in lines.tobytes().splitlines()]
