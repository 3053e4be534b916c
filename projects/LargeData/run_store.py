"""A run's files in a store: each whole, a list of what is whole last, and a record of which run the place belongs to.

A file that changes has two names by turns, so that the one in the list stays as it is until the next list is written.
"""

import errno
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_origin, get_type_hints

from fsspec.implementations.local import LocalFileSystem

from projects.LargeData.places import Store
from revisit.checkpoint.run_folder import iteration_of
from revisit.errors import LostContactError, UserError, expect, first_line, printable
from revisit.files import plain_name, write_whole, written_whole

LIST, COPY, OWNER = "run.json", "run_copy.json", "owner.json"
CHUNK = 2**24  # bytes
TRIES, FIRST_WAIT = 6, 0.5  # of a request at the start; seconds before the second, doubled after each
FOR_GOOD = (FileNotFoundError, PermissionError, ImportError, ValueError)  # which no other try changes
FULL = (errno.ENOSPC, errno.EDQUOT)
NO_RECORD = (KeyError, TypeError, AttributeError, ValueError, RecursionError)  # of JSON that is something else
Result = TypeVar("Result")
Record = TypeVar("Record", bound=NamedTuple)


class Entry(NamedTuple):
    """A whole file."""

    place: str  # its name in the store, one of ``places_of``
    size: int  # bytes
    sha256: str
    iteration: int  # after which a checkpoint was made; -1: none that a run resumes from


class Listing(NamedTuple):
    """What of a run is whole in a store, by the name in OUTPUT_DIR."""

    run: str  # made up when the run began
    files: dict[str, Entry]


class Owner(NamedTuple):
    """Whose a place in a store is."""

    folder: str  # made up for an OUTPUT_DIR, which run_lock lets one run have
    process: str  # made up by a process that trains; "": none yet
    words: str  # for people
    beat: int = 0  # counts while the process is alive


HALF = Owner("", "", "a run that writes its record at this moment, or was killed while it did")


class RunStore(Store):
    """The place of a run at a URL that fsspec reads and writes."""

    @property
    def folder(self) -> Path | None:
        """Of a place on this machine."""
        return Path(self._root) if isinstance(self._filesystem, LocalFileSystem) else None

    def listing(self) -> Listing | None:
        """None where no run has a whole file. Raises UserError for a list that is none, nor its copy, and for one with
        a name that could leave OUTPUT_DIR or the store."""
        content = self.read(LIST)
        if content is None:
            return None
        listing = listing_in(content) or listing_in(self.read(COPY))
        what = f"{self}/{LIST} is no list of a run's files"
        expect(listing is not None, f"{what}: take another place")
        for name, entry in listing.files.items():
            plain_name(name, f"{self}/{LIST}")
            other = f"{what}: it has {name} as {entry.place}, expected {' or '.join(places_of(name))}"
            expect(entry.place in places_of(name), f"{other}: take another place")
        return listing

    def publish(self, listing: Listing) -> None:
        """Write the list twice: of a writer that is killed, one of the two is whole."""
        files = [{"name": name, **entry._asdict()} for name, entry in sorted(listing.files.items())]
        content = {"run": listing.run, "files": files}
        self._write(COPY, content)
        self._write(LIST, content)

    def owner(self) -> Owner | None:
        """None where it is free, HALF where the record is half written."""
        content = self.read(OWNER)
        try:
            return None if content is None else owner_in(json.loads(content))
        except NO_RECORD:
            return HALF

    def own(self, owner: Owner) -> None:
        self._write(OWNER, owner._asdict())

    def upload(self, path: Path, before: Entry | None, between: Callable[[], None]) -> Entry:
        """Write a file next to the one that an earlier list has; ``between`` is called before every CHUNK."""
        first, second = places_of(path.name)
        place = second if before and before.place == first else first
        iteration, size, digest = iteration_of(path), 0, hashlib.sha256()
        with open(path, "rb") as source, self._filesystem.open(f"{self._root}/{place}", "wb") as target:
            while chunk := source.read(CHUNK):
                between()
                target.write(chunk)
                digest.update(chunk)
                size += len(chunk)
        return Entry(place, size, digest.hexdigest(), iteration)

    def download(self, entry: Entry, path: Path) -> None:
        """Write the file to ``path``, whole or not at all. Raises ValueError for other bytes than the list's."""
        digest = hashlib.sha256()
        with written_whole(path) as temporary:
            with self.open(entry.place) as source, open(temporary, "wb") as target:
                while chunk := source.read(CHUNK):
                    target.write(chunk)
                    digest.update(chunk)
            if digest.hexdigest() != entry.sha256:
                raise ValueError(f"{self}/{entry.place} has other bytes than {LIST} says")

    def _write(self, name: str, content: dict) -> None:
        text = json.dumps(content, indent=1)
        if self.folder:
            write_whole(self.folder / name, text)  # a store has it whole or not at all by itself
        else:
            self._filesystem.pipe_file(f"{self._root}/{name}", text.encode())


def listing_in(content: bytes | None) -> Listing | None:
    """None for a file that has no list, a part of one, or that is not there."""
    try:
        fields = json.loads(content or b"")
        files = {file.pop("name"): typed(Entry(**file), Entry) for file in fields["files"]}
        return typed(Listing(fields["run"], files), Listing)
    except NO_RECORD:
        return None


def owner_in(fields: dict) -> Owner:
    """Whose a place is; its words, which anybody may have written, can be printed. Raises TypeError for no owner."""
    owner = typed(Owner(**fields), Owner)
    return owner._replace(words=printable(owner.words))


def typed(record: Record, kind: type[Record]) -> Record:
    """The record. Raises TypeError where a value is not of the type that is declared for it."""
    declared = get_type_hints(kind)
    wrong = [name for name, value in record._asdict().items() if type(value) is not origin_of(declared[name])]
    if wrong:
        raise TypeError(f"{', '.join(wrong)} of another type")
    return record


def origin_of(hint: Any) -> type:
    """``dict`` of ``dict[str, Entry]``."""
    return get_origin(hint) or hint


def places_of(name: str) -> tuple[str, str]:
    """The names that a file has by turns in a store."""
    return name, f"{name}.2"


def answered(call: Callable[[], Result], doing: str) -> Result:
    """What a store answers before a run starts, asked TRIES times where it does not.

    Raises:
        LostContactError: no answer.
        UserError: it refuses.
        OSError: the disk is full, of this machine or of a place on one.
    """
    wait = FIRST_WAIT
    for last in [*[False] * (TRIES - 1), True]:
        try:
            return call()
        except UserError:
            raise
        except Exception as error:  # packages of stores have errors of their own
            if getattr(error, "errno", None) in FULL:
                raise
            kind = LostContactError if isinstance(error, OSError) else UserError
            if isinstance(error, FOR_GOOD):
                raise UserError(f"{doing}: {type(error).__name__}: {first_line(error)}") from error
            if last:
                raise kind(f"{doing}: no answer ({type(error).__name__}: {first_line(error)})") from error
            time.sleep(wait)
            wait *= 2
    raise AssertionError
