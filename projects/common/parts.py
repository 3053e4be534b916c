"""Work over many rows in parts, each of which is one whole file, so that an interrupted command continues."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from tqdm import tqdm

from revisit.files import written_whole

Arrays = dict[str, np.ndarray]  # by name, a row for each thing that was looked at


def in_parts(count: int, size: int, folder: Path, compute: Callable[[range], Arrays], title: str) -> list[Path]:
    """One file of ``compute(range)`` for every ``size`` of ``count`` rows, in order; files that are there stay.

    A terminal shows the progress, and how long the rest takes.
    """
    folder.mkdir(exist_ok=True)
    files = []
    for start in tqdm(range(0, count, size), desc=title, unit="part"):
        path = folder / f"{start:09d}.npz"
        if not path.is_file():
            save_arrays(path, compute(range(start, min(start + size, count))))
        files.append(path)
    return files


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays by name, whole or not at all."""
    with written_whole(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


def joined(files: list[Path]) -> Arrays:
    """The arrays of all parts, one after the other."""
    parts = []
    for file in files:
        with np.load(file) as content:
            parts.append(dict(content))
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    """One after the other; those without rows need not know a width."""
    with_rows = [array for array in arrays if len(array)]
    return np.concatenate(with_rows or arrays[:1])
