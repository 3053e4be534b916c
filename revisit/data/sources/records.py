"""What can be asked of records: some of them, their classes, what tells them from others, images that two share."""

import gc
import hashlib
import json
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np

from revisit.data.images.image_bytes import WINDOW, UnreadableImageError, read_bytes
from revisit.data.sources.rows import Rows
from revisit.errors import first_few
from revisit.progress import progress
from revisit.threads import thread_pool

Records = Sequence[dict]  # a list, or Rows
SAMPLED = 1000  # images, at most
COMPARED = 20_000  # images of each data set whose contents are compared; of larger ones, evenly spread
LABELS = ("annotations", "label", "labels")  # fields of a record that are labels themselves
ABSENT, DIFFICULT, PRESENT = -1, 0, 1  # of each class, in the field ``labels``
WITHOUT_LABELS = "without_labels"  # a field that is true of an image for which there is no file of boxes
NOT_SCORED = "not_scored"  # a field that is true of an annotation which is learned from, and scored as a crowd
LABEL_FILES = ("sem_seg_file_name", "depth_file_name")  # fields that name a file of labels
CHANNEL_FILES = "channel_files"  # a field with a file for each channel, of which the first is ``file_name``
MOST_NAMED = 2**24  # images, up to which a fingerprint has the names as text: as of a list of them, in half a minute
_AT_ONCE = 2**14  # records that are in work, and names that are text
_IN_TASK = 16  # records that a thread asks for at once
_THREADS = 8  # for stores that answer late


def grouped(values: Iterable[Any], by: Callable[[Any], Hashable]) -> dict[Any, list[Any]]:
    """Values in their order, by what ``by`` says of each."""
    groups = defaultdict(list)
    for value in values:
        groups[by(value)].append(value)
    return dict(groups)


@contextmanager
def keeping_all() -> Iterator[None]:
    """For blocks that make millions of objects to keep: Python does not look among them, again and again, for what
    nobody holds, which takes longer than to make them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def sample(records: Sequence, most: int = SAMPLED) -> list:
    """At most ``most`` records, spread evenly from the first to the last: always the same ones."""
    count = min(most, len(records))
    places = np.linspace(0, len(records) - 1, count).astype(int)
    return [records[n] for n in places]


def take(records: Records, places: np.ndarray) -> Records:
    """The records at (K,) int64 ``places``, in this order."""
    return records.take(places) if isinstance(records, Rows) else [records[n] for n in places]


def labels_of(records: Records) -> np.ndarray | None:
    """(M,) the class of each image; None unless all have one."""
    if isinstance(records, Rows):
        return records.column("label")
    have_labels = all("label" in record for record in records)
    return np.array([record["label"] for record in records]) if have_labels else None


def ask_each(ask: Callable[[dict], object], records: Records, title: str = "") -> list:
    """``ask`` of every record, by several threads, in order; a ``title`` is that of its progress."""
    # The reader silences PIL too, but of several threads that do so the last may not restore the first one's filters.
    with warnings.catch_warnings(action="ignore"), thread_pool(_THREADS) as pool:
        answers = _asked(ask, records, pool)
        return list(progress(title, "image", answers, total=len(records)) if title else answers)


def _asked(ask: Callable[[dict], object], records: Records, pool: Executor) -> Iterator[object]:
    """Answers in order; each task has several questions, because a task takes longer than a question of the disk."""
    tasks = (records[start : start + _IN_TASK] for start in range(0, len(records), _IN_TASK))
    while part := list(islice(tasks, _AT_ONCE // _IN_TASK)):
        for answers in pool.map(lambda some: [ask(record) for record in some], part):
            yield from answers


# Parts of a fingerprint besides the number of records, and their names in messages.
PARTS = {
    "names": "names",
    "sizes": "files' sizes",
    "times": "files' times",
    "labels": "labels",
    "classes": "names of classes",
}


def fingerprint(*sets: Records, labels: bool = True, classes: Sequence[str] = ()) -> list[dict[str, int | str]]:
    """What tells records from others: of each set their ``count``, and a sha256 of each of PARTS.

    Names are those below the folder that all share, because it may be moved; of more than MOST_NAMED Rows, what their
    table says. Sizes (bytes), times and labels (annotations, classes; of at most SAMPLED images the contents of masks
    and depth maps) are of at most COMPARED images, evenly spread. Labels are left out of what learns without them,
    ``labels=False``. ``classes`` are the names by which labels count, where something says them.
    """
    return [{"count": len(records)} | _digests(records, labels, classes) for records in sets]


def _digests(records: Records, labels: bool, classes: Sequence[str]) -> dict[str, str]:
    compared = sample(records, COMPARED)
    facts = {
        "sizes": ask_each(partial(_of_files, _size), compared),
        "times": ask_each(partial(_of_files, _time), compared),
    }
    if labels:
        annotated = [{key: _known_before(record.get(key)) for key in LABELS} for record in compared]
        contents = cache(_content_of_file)  # of windows many have one file
        files = [[record[field] for field in LABEL_FILES if field in record] for record in sample(records)]
        facts["labels"] = [annotated, ask_each(lambda of_record: [*map(contents, of_record)], files)]
    if classes:
        facts["classes"] = list(classes)
    digests = {part: _sha256([json.dumps(values, default=str)]) for part, values in facts.items()}
    return {"names": _sha256(_names_as_text(records)), **digests}


def _known_before(labels: object) -> object:
    """Labels without NOT_SCORED, so that what was made before there was this field has the same fingerprint."""
    if isinstance(labels, list) and labels and isinstance(labels[0], dict):
        return [{key: value for key, value in each.items() if key != NOT_SCORED} for each in labels]
    return labels


def as_scored(annotation: dict) -> dict:
    """As the truth has it, against which boxes are scored."""
    return {**annotation, "iscrowd": 1} if annotation.get(NOT_SCORED) else annotation


def _of_files(ask: Callable[[dict], int], record: dict) -> int | list[int]:
    """What is answered of an image; of channels with files of their own, of each of these."""
    channels = [ask(record | {"file_name": file_name}) for file_name in record.get(CHANNEL_FILES, ())]
    return channels or ask(record)


def files_of_record(record: dict) -> list[str]:
    """The file of an image, or those of its channels; "" of one that is in memory."""
    return record.get(CHANNEL_FILES) or [str(record.get("file_name", ""))]


def _sha256(pieces: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece.encode())
    return digest.hexdigest()


def _names_as_text(records: Records) -> Iterator[str]:
    """Pieces of a list in JSON of every image's files, each with its offset or window, "" where it is whole; of very
    many Rows, what their table says of them."""
    if isinstance(records, Rows) and len(records) > MOST_NAMED:
        yield records.content
        return
    if isinstance(records, Rows):
        files, locations = records.file_names(), records.locations()
    else:
        files = [file_name for record in records for file_name in files_of_record(record)]
        parts = (record.get("offset", record.get(WINDOW, "")) for record in records for _ in files_of_record(record))
        locations = zip(files, parts, strict=True)
    shared = os.path.commonprefix(files).rfind("/") + 1
    # Names of files need not be text that UTF-8 can hold: JSON escapes them.
    between = "["
    while part := [f"{name[shared:]} {offset}" for name, offset in islice(locations, _AT_ONCE)]:
        yield between + json.dumps(part)[1:-1]
        between = ", "
    yield "]"


def changes(before: list[dict], now: list[dict], *, times: bool = True) -> list[str]:
    """What differs between two fingerprints, as PARTS calls it; a copy has other ``times``, which may not matter.

    Parts that only one of them has, such as those of an earlier version, are not compared.
    """
    if [prints["count"] for prints in before] != [prints["count"] for prints in now]:
        return ["number"]

    parts = [part for part in PARTS if times or part != "times"]
    return [PARTS[part] for part in parts if _differ(part, before, now)]


def _differ(part: str, before: list[dict], now: list[dict]) -> bool:
    """Whether a part differs in two of the lists that both have it."""
    pairs = [(one[part], other[part]) for one, other in zip(before, now, strict=True) if part in one and part in other]
    return any(one != other for one, other in pairs)


def others_than(some: Records, records: Records) -> list[dict]:
    """The images of ``records`` that are no file of ``some``."""
    files = _locations(some)
    return [record for record in records if _location(record) not in files]


def shared_pairs(one: Records, other: Records) -> list[tuple[dict, dict]]:
    """The images of ``other`` that are in ``one`` too, each with what it is there: the same file, or a file with the
    same bytes.

    Bytes are compared of at most COMPARED images of each, and read only where their number is equal.
    """
    files = _locations(one)
    pairs = [(record, record) for record in other if _location(record) in files]
    by_size = grouped(sample(one, COMPARED), _size)

    @cache
    def contents(size: int) -> dict[bytes, dict]:
        return {_content(record): record for record in reversed(by_size[size])}

    for record in sample(others_than(one, other), COMPARED):
        size = _size(record)
        content = _content(record) if size > 0 and size in by_size else b""
        if content and content in contents(size):
            pairs.append((record, contents(size)[content]))
    return pairs


def such_as(pairs: Iterable[tuple[dict, dict]]) -> str:
    """`` (b.png like a.png)`` of the first few pairs of images, for the end of a message; `` (a.png)`` where both are
    that file, "" where they have none."""
    named = [[record.get("file_name", "") for record in pair] for pair in pairs]
    words = first_few([" like ".join(dict.fromkeys(names)) for names in named if all(names)])
    return f" ({words})" if words else ""


def equal_images(records: Records) -> list[list[dict]]:
    """Groups of two or more images with the same bytes, which are read only where their number is equal."""
    groups = []
    for size, alike in grouped(records, _size).items():
        by_content = grouped(alike, _content) if size and len(alike) > 1 else {}
        groups += [same for content, same in by_content.items() if content and len(same) > 1]
    return groups


def _locations(records: Records) -> set[tuple[str, object] | None]:
    return {_location(record) for record in records} - {None}


def _location(record: dict) -> tuple[str, object] | None:
    """Where an image lies; None of one that is in memory."""
    if "file_name" not in record:
        return None
    return os.path.abspath(record["file_name"]), record.get("offset", record.get(WINDOW, 0))


def _size(record: dict) -> int:
    """The number of bytes; 0 of an image at a URL, of a window, or that is missing."""
    if "image" in record:
        return record["image"].nbytes
    if WINDOW in record or "://" in record["file_name"]:
        return 0
    try:
        return record.get("size") or os.stat(record["file_name"]).st_size
    except OSError:
        return 0


def _time(record: dict) -> int:
    """When the file was last written, in ns; 0 of what has none."""
    try:
        return os.stat(record["file_name"]).st_mtime_ns
    except (KeyError, OSError):
        return 0


def _content_of_file(file_name: str) -> str:
    """A digest; an empty one of a file that cannot be read."""
    return _content({"file_name": file_name}).hex()


def _content(record: dict) -> bytes:
    """A digest of the image's bytes, in all of its files; empty where they cannot be read."""
    digest = hashlib.sha256()
    try:
        if "image" in record:
            digest.update(record["image"].tobytes())
        else:
            for file_name in files_of_record(record):
                digest.update(read_bytes(record | {"file_name": file_name}))
    except UnreadableImageError:
        return b""
    return digest.digest()
