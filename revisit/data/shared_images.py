"""Images that two data sets share, which a score counts as found."""

import hashlib
import os
from collections import defaultdict

from revisit.data.image_folders import Records

SAMPLE = 20_000  # images of each data set whose contents are compared; of larger ones, evenly spread


def shared_images(one: Records, other: Records) -> int:
    """How many images of ``other`` are in ``one`` too: the same path, the same file, or a file of the same content.

    Content is compared of at most SAMPLE images of each, and read only where sizes in bytes are equal.
    """
    paths = {_path(record) for record in one} - {None}
    same = [_path(record) in paths for record in other]
    rest = [record for record, found in zip(other, same, strict=True) if not found]
    by_size: dict[int, list[dict]] = defaultdict(list)
    for record in _spread(one):
        by_size[_size(record)].append(record)
    contents: dict[int, set[bytes]] = {}
    for record in _spread(rest):
        size = _size(record)
        if size > 0 and size in by_size:
            if size not in contents:
                contents[size] = {_digest(candidate) for candidate in by_size[size]} - {b""}
            same.append(_digest(record) in contents[size])
    return sum(same)


def _spread(records: Records) -> Records:
    return records[:: -(-len(records) // SAMPLE) or 1]


def _path(record: dict) -> tuple[str, int] | None:
    """Where an image lies; None of one that is in memory."""
    return (os.path.abspath(record["file_name"]), record.get("offset", 0)) if "file_name" in record else None


def _size(record: dict) -> int:
    """Bytes; 0 of what is far away or not there."""
    if "image" in record:
        return record["image"].nbytes
    if "://" in record["file_name"]:
        return 0
    try:
        return record.get("size") or os.stat(record["file_name"]).st_size
    except OSError:
        return 0


def _digest(record: dict) -> bytes:
    """Of the image's bytes; empty where they cannot be read."""
    if "image" in record:
        return hashlib.sha256(record["image"].tobytes()).digest()
    try:
        with open(record["file_name"], "rb") as file:
            file.seek(record.get("offset", 0))
            return hashlib.sha256(file.read(_size(record))).digest()
    except OSError:
        return b""
