"""Arrays of many rows, made in parts, each of which is one whole file, so that an interrupted command continues."""

import json
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projects.common.runners.job import CONTINUES, Job, Runner
from projects.common.runners.processes import HERE
from revisit.errors import UserError
from revisit.files import written_whole

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
    """
    folder.mkdir(exist_ok=True)
    starts = range(0, work.count, work.size)
    names = [f"{start:09d}.npz" for start in starts]
    make, lock = partial(_make, work, folder), folder.with_suffix(".lock")
    runner.run(Job(work.title, names, partial(_names_in, folder), make, str(folder), lock))
    yield _joined_files([folder / name for name in names])
    shutil.rmtree(folder)
    lock.unlink(missing_ok=True)


def _names_in(folder: Path) -> Collection[str]:
    return {path.name for path in folder.glob("*.npz")}


def _make(work: Work, folder: Path, number: int) -> None:
    start = number * work.size
    arrays = work.compute(range(start, min(start + work.size, work.count)))
    save_arrays(folder / f"{start:09d}.npz", arrays, lasting=False)


def save_arrays(path: Path, arrays: Arrays, *, lasting: bool = True) -> None:
    """Write arrays by name, whole or not at all; see ``written_whole``."""
    with written_whole(path, lasting=lasting) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


def _joined_files(files: list[Path]) -> Arrays:
    """The arrays of all parts, one after the other. Raises UserError for one that a power cut has damaged."""
    parts = []
    for file in files:
        try:
            with np.load(file) as content:
                parts.append(dict(content))
        except Exception as error:  # whatever damaged bytes trip
            file.unlink(missing_ok=True)
            raise UserError(f"{file} was damaged, and is deleted now: {CONTINUES}") from error
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def as_lines(values: list[Any]) -> np.ndarray:
    """Values that JSON has, a line each, as an array of bytes: what is no row of numbers."""
    text = "".join(f"{json.dumps(value)}\n" for value in values)  # ASCII
    return np.frombuffer(text.encode(), np.uint8)


def of_lines(lines: np.ndarray) -> list[Any]:
    """What ``as_lines`` was given, of one part or of several."""
    return [json.loads(line) for line in lines.tobytes().splitlines()]


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    """One after the other; those without rows need not know a width."""
    with_rows = [array for array in arrays if len(array)]
    return np.concatenate(with_rows or arrays[:1])
