"""A look at some images of a data set, before a run reads them all."""

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tqdm import tqdm

from revisit.data.reader import UnreadableImageError, read_record

SAMPLED = 1000  # images, at most
_THREADS = 8  # for stores that answer late


def sample(records: Sequence, most: int = SAMPLED) -> list:
    """At most ``most`` records, spread evenly: always the same ones."""
    return [records[n] for n in np.linspace(0, len(records) - 1, min(most, len(records))).astype(int)]


def ask_each(ask: Callable[[dict], object], records: list[dict], title: str = "") -> list:
    """``ask`` of every record, in order; under a ``title`` a terminal sees how far it is."""
    # The reader too silences PIL, but of several threads that do so the last may not restore what the first found.
    with warnings.catch_warnings(), ThreadPoolExecutor(_THREADS) as pool:
        warnings.simplefilter("ignore")
        bar = {"total": len(records), "unit": "image", "desc": title, "disable": not title or None}
        return list(tqdm(pool.map(ask, records), **bar))


def find_unreadable(records: Sequence[dict], bit_depth: int | None) -> tuple[int, list[str]]:
    """How many images were looked at, at most SAMPLED, and of each that cannot be read: its file, and why."""

    def problem(record: dict) -> str:
        try:
            read_record(record, bit_depth)
        except UnreadableImageError as error:
            return str(error)
        return ""

    chosen = sample(records)
    return len(chosen), [found for found in ask_each(problem, chosen, "reading images") if found]
