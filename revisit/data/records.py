"""What can be asked of a list of records: some of them, what tells them from others, images that two lists share."""

import hashlib
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tqdm import tqdm

from revisit.data.image_bytes import UnreadableImageError, read_bytes

Records = list[dict]
SAMPLED = 1000  # images, at most
COMPARED = 20_000  # images of each data set whose contents are compared; of larger ones, evenly spread
_THREADS = 8  # for stores that answer late


def sample(records: Sequence, most: int = SAMPLED) -> list:
    """At most ``most`` records, spread evenly: always the same ones."""
    return [records[n] for n in np.linspace(0, len(records) - 1, min(most, len(records))).astype(int)]


def ask_each(ask: Callable[[dict], object], records: Records, title: str = "") -> list:
    """``ask`` of every record, by several threads, in order; under a ``title`` a terminal shows the progress."""
    # The reader silences PIL too, but of several threads that do so the last may not restore the first one's filters.
    with warnings.catch_warnings(), ThreadPoolExecutor(_THREADS) as pool:
        warnings.simplefilter("ignore")
        bar = {"total": len(records), "unit": "image", "desc": title, "disable": not title or None}
        return list(tqdm(pool.map(ask, records), **bar))


def fingerprint(*sets: Records) -> list[dict[str, int | str]]:
    """What tells records from others: of each list ``count``, and ``names``, a sha256 of the names of their files, in
    their order, below the folder that they share: that one may be moved."""
    prints = []
    for records in sets:
        names = [str(record.get("file_name", "")) for record in records]
        shared = os.path.commonprefix([min(names), max(names)]).rfind("/") + 1
        digest = hashlib.sha256()
        for name, record in zip(names, records, strict=True):
            digest.update(f"{name[shared:]} {record.get('offset', '')}\n".encode(errors="surrogateescape"))
        prints.append({"count": len(records), "names": digest.hexdigest()})
    return prints


def shared_images(one: Records, other: Records) -> int:
    """How many images of ``other`` are in ``one`` too: in the same place, or with the same bytes.

    Bytes are compared of at most COMPARED images of each, and read only where their number is equal.
    """
    places = {_place(record) for record in one} - {None}
    rest = [record for record in other if _place(record) not in places]
    by_size: dict[int, Records] = defaultdict(list)
    for record in sample(one, COMPARED):
        by_size[_size(record)].append(record)
    contents: dict[int, set[bytes]] = {}
    count = len(other) - len(rest)
    for record in sample(rest, COMPARED):
        size = _size(record)
        if size and size in by_size:
            if size not in contents:
                contents[size] = {_content(candidate) for candidate in by_size[size]} - {b""}
            count += _content(record) in contents[size]
    return count


def _place(record: dict) -> tuple[str, int] | None:
    """Where an image lies; None of one that is in memory."""
    return (os.path.abspath(record["file_name"]), record.get("offset", 0)) if "file_name" in record else None


def _size(record: dict) -> int:
    """The number of bytes; 0 of an image at a URL, or that is missing."""
    if "image" in record:
        return record["image"].nbytes
    if "://" in record["file_name"]:
        return 0
    try:
        return record.get("size") or os.stat(record["file_name"]).st_size
    except OSError:
        return 0


def _content(record: dict) -> bytes:
    """A digest of the image's bytes; empty where they cannot be read."""
    try:
        data = record["image"].tobytes() if "image" in record else read_bytes(record)
    except UnreadableImageError:
        return b""
    return hashlib.sha256(data).digest()
