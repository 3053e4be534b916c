"""Images a second read and decoded from shards, against loose files."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from projects.Benchmarks.measuring import compare, measure
from revisit.data.catalog import get_records
from revisit.data.reader import read_record
from revisit.errors import UserError


def measure_shards(files: str, shards: str, *, images: int, repeats: int) -> dict[str, object]:
    """Images a second of one process; ratio above 1 says that shards are faster.

    Args:
        files: a data set of loose files, the reference.
        shards: a folder with the same images, by tools/make_shards.py.
        images: of one repeat.
    """
    loose, packed = get_records(files), get_records(f"shards:{shards}")
    if len(loose) != len(packed):
        raise UserError(f"{files} has {len(loose)} images, {shards} {len(packed)}: expected the same images")
    order = np.random.default_rng(0).permutation(len(loose))[:images].tolist()

    def read(records: list[dict]) -> Callable[[], None]:
        return lambda: [read_record(records[index]) for index in order]

    seconds = measure({"files": read(loose), "shards": read(packed)}, repeats)
    return compare(seconds, "shards", "files", len(order))
