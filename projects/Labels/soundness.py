"""What of a data set cannot be read, found before a run begins: images by their heads and ends, some by decoding."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from revisit.data.images.image_bytes import WINDOW, UnreadableImageError
from revisit.data.images.opening import taking_turns
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import TruncatedImageError, ends_well, open_record
from revisit.data.sources.labels import read_depth, read_ids
from revisit.data.sources.records import Records, ask_each, sample

SECONDS = 30.0  # for a set to learn from; one to be scored is looked at whole
MOST = 2**20  # images of it, more than so many seconds allow


class Look(NamedTuple):
    """What was found in the images of a data set."""

    seen: int  # how many images were looked at
    unreadable: list[str]  # messages, each with its file
    truncated: list[str]  # the same, of JPEGs of which a part is there


def look_at(
    records: Records,
    pixels: PixelFormat,
    *,
    whole: bool = False,
    problem_of: Callable[[dict], str] | None = None,
) -> Look:
    """Read heads and ends of the images and maps of labels, in an order that spreads them, and decode a sample whole.

    Args:
        whole: however long it takes; else as many as SECONDS allow.
        problem_of: what makes a record unreadable before its file is read; "" of a sound one.

    Raises:
        UserError: a mask or depth map that cannot be read.
    """
    deadline = float("inf") if whole else time.monotonic() + SECONDS
    numbers = range(len(records))
    decoded = set(sample(numbers))

    def state_of(number: int) -> tuple[str, str]:
        """sound, unreadable, truncated or skipped, and a message."""
        if time.monotonic() > deadline:
            return "skipped", ""
        record = records[number]
        if problem_of and (problem := problem_of(record)):
            return "unreadable", problem
        _check_labels(record)
        if number not in decoded and ends_well(record):
            return "sound", ""
        return _state_by_decoding(record, pixels)

    step = 1 if whole else -(-len(records) // MOST)
    order = np.random.default_rng(0).permutation(numbers[::step])
    states = ask_each(state_of, order, "looking at images")
    unreadable = sorted(message for state, message in states if state == "unreadable")
    truncated = sorted(message for state, message in states if state == "truncated")
    return Look(sum(state != "skipped" for state, _ in states), unreadable, truncated)


def _state_by_decoding(record: dict, pixels: PixelFormat) -> tuple[str, str]:
    truncated = ""
    try:
        picture = open_record(record, pixels)  # of a window it may say truncated, too: there is nothing to complete
        try:
            with taking_turns(int(np.prod(picture.size))):
                picture.decode()
        except TruncatedImageError as error:
            truncated = str(error)
            picture.decode(complete=True)
    except UnreadableImageError as error:
        return "unreadable", truncated or str(error)
    return ("truncated", truncated) if truncated else ("sound", "")


def _check_labels(record: dict) -> None:
    """Raises UserError where a file of labels is damaged, as far as its head and end tell."""
    if (mask := record.get("sem_seg_file_name")) and not ends_well({"file_name": mask}):
        read_ids(mask, record.get(WINDOW))
    if depth := record.get("depth_file_name"):
        read_depth(depth, record.get(WINDOW))
