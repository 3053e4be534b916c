"""Work in parts, each of which becomes a file, whole or not at all; what is there is not made again.

What comes out does not depend on who makes which part, as long as each computes with as many threads.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from revisit.files import one_at_a_time
from revisit.progress import progress

PER_WORKER = 16  # batches of parts at least, so that none waits long for the last one
CONTINUES = "the same command continues"


class Parts(NamedTuple):
    """What is to be made. It travels to other processes by pickle."""

    title: str  # of its progress
    names: Sequence[Hashable]  # what ``present`` calls them
    present: Callable[[], Collection[Hashable]]  # those that are in files
    make: Callable[[Sequence[int]], Iterator[int]]  # those of these numbers; yields how many more are in files
    place: str  # that has the files, in words
    lock: Path | None = None  # for the process that puts the parts together, where it may be one of several
    in_threads: bool = False  # threads of a process may make several parts at a time


class Runner:
    """Who makes the parts. By default no other command shares them, and one process works into a folder."""

    def run(self, parts: Parts) -> None:
        """Make what is missing. A process that returns finds all parts there, and it alone puts them together.

        Raises SystemExit in a process that has made its share where others put them together; UserError where a part
        cannot be made.
        """
        raise NotImplementedError

    def in_charge(self, lock: Path) -> AbstractContextManager:
        """A block that makes parts and puts them together. Raises UserError where another command is in one."""
        return one_at_a_time(
            lock, f"another command works in {lock.parent}: wait for its end, stop it, or give another --output"
        )

    def alone(self, folder: Path | None) -> AbstractContextManager:
        """A block that one process at a time enters, of those that work into the folder; None is a store."""
        return nullcontext()


class PerProcess:
    """A value that each process makes for itself: one that is large, or cannot be pickled."""

    def __init__(self, make: Callable[[], Any], made: Any = None):
        self._make, self._made = make, made

    def __call__(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __reduce__(self) -> tuple:
        return PerProcess, (self._make,)


def missing(parts: Parts) -> list[int]:
    """The numbers of parts that are not there."""
    present = parts.present()
    return [number for number, name in enumerate(parts.names) if name not in present]


def progress_of(parts: Parts, missing: int) -> tqdm:
    """Of all parts."""
    count = len(parts.names)
    return progress(parts.title, "part", total=count, done=count - missing)


def make_here(parts: Parts, todo: Sequence[int]) -> None:
    """Make these parts in this process."""
    with progress_of(parts, len(todo)) as bar:
        for count in parts.make(todo):
            bar.update(count)


def in_batches(numbers: Sequence[int], workers: int) -> list[Sequence[int]]:
    """Neighbours together, so that 10,000 parts are not 10,000 messages; few parts are batches of one."""
    size = max(1, len(numbers) // (PER_WORKER * workers))
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


def make_batch(parts: Parts, numbers: Sequence[int]) -> int:
    """Make what is missing of a batch, which another worker may have begun. Returns how many parts it has."""
    present = parts.present()
    todo = [number for number in numbers if parts.names[number] not in present]
    for _ in parts.make(todo):
        pass
    return len(numbers)
