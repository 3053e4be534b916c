"""Which images belong together, by their names, by what their files say or by a table; several rules are united."""

import os
import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from projects.Objectives.image_groups import FILE, PATIENT, groups_of
from projects.Tiles.geo import WGS84, geo_package, place_of, reprojected
from projects.Tiles.window_files import look_at
from revisit.data.images.opening import open_image
from revisit.data.sources.file_names import real_paths
from revisit.data.sources.records import Records, ask_each
from revisit.errors import UserError, expect, first_few, first_line

METRES = 111_320.0  # of a degree along a meridian, within 0.6 %
_EXIF, _TAKEN, _CHANGED = 0x8769, 0x9003, 0x0132  # EXIF's own tags, DateTimeOriginal and DateTime
_DAY = re.compile(r"([12]\d{3})\D(\d\d)\D(\d\d)")

Keys = Sequence[Hashable]  # of each image what it shares with those that it belongs to; None: it says nothing


class Together(NamedTuple):
    """N images in groups."""

    groups: np.ndarray  # (N,) int64, from 0 on, in the order of their first images
    notes: list[str]  # what each rule has found


class Frame(NamedTuple):
    """Of a video, by the name of its file."""

    video: str  # what all frames share: folders, and the name before the number at its end
    number: int


def frame_of(file_name: str) -> Frame | None:
    """None of a name that ends in no number."""
    stem = os.path.splitext(file_name)[0]
    video = stem.rstrip(string.digits)
    return Frame(video, int(stem[len(video) :])) if video != stem else None


def kept_together(records: Records, rules: Sequence[tuple[str, object]]) -> Together:
    """Groups by any of the rules, each one of RULES with its value; windows of one file are always one, and so
    are links to it.

    Args:
        records: with a file for each image or window.

    Raises:
        UserError: a rule finds nothing in any image, or one of its own; see groups_of.
    """
    every: list[Keys] = [real_paths(groups_of(FILE, records)[0])]
    notes = []
    for rule, value in rules:
        keys = RULES[rule](records, value)
        named = f"{rule}={value}" if value else rule
        notes.append(_note(named, keys, records))
        every.append(keys)
    return Together(_united(every), notes)


def _note(rule: str, keys: Keys, records: Records) -> str:
    """What a rule has found. Raises UserError where that is nothing."""
    sizes = Counter(key for key in keys if key is not None)
    without = [record["file_name"] for record, key in zip(records, keys, strict=True) if key is None]
    example = f"such as {first_few(without[:1])}"
    expect(bool(sizes), f"--rule {rule} finds nothing in any of {len(keys):,} images, {example}: expected another rule")
    alone = f"; it finds nothing in {len(without):,} images, {example}" if without else ""
    return f"{rule}: {len(sizes):,} groups of {min(sizes.values()):,} to {max(sizes.values()):,} images{alone}"


def _united(every: Sequence[Keys]) -> np.ndarray:
    """(N,) int64, the groups of images that are joined by equal keys of any rule, also by way of others."""
    count = len(every[0])
    nodes: dict[Hashable, int] = {}  # of keys, after those of the images
    edges = []
    for rule, keys in enumerate(every):
        named = ((image, (rule, key)) for image, key in enumerate(keys) if key is not None)
        edges += [(image, count + nodes.setdefault(key, len(nodes))) for image, key in named]
    size = count + len(nodes)
    links = coo_array((np.ones(len(edges), bool), np.array(edges).T), shape=(size, size))
    _, groups = connected_components(links, directed=False)
    _, where, numbers = np.unique(groups[:count], return_index=True, return_inverse=True)
    return where.argsort().argsort()[numbers]


def _by_folder(records: Records, _: object) -> Keys:
    return [os.path.dirname(os.path.abspath(record["file_name"])) for record in records]


def _by_video(records: Records, _: object) -> Keys:
    frames = (frame_of(os.path.abspath(record["file_name"])) for record in records)
    return [frame and frame.video for frame in frames]


def _by_pattern(records: Records, pattern: object) -> Keys:
    """What the groups of a regular expression find in a name with its folders, or all of it, where it has none; None
    where no group finds anything."""
    try:
        expression = re.compile(str(pattern))
    except re.error as error:
        raise UserError(f"--rule pattern={pattern}: {first_line(error)}: expected a regular expression") from error
    matches = (expression.search(str(record["file_name"])) for record in records)
    parts = [match and (match.groups() or (match[0],)) for match in matches]
    return [each if each and any(part is not None for part in each) else None for each in parts]


def _by_day(records: Records, _: object) -> Keys:
    return ask_each(_day, records, "reading when images were taken")


def _day(record: dict) -> tuple[str, ...] | None:
    """Year, month and day on which a photograph was taken, else on which it was changed."""
    with suppress(Exception):  # damaged metadata raise whatever their bytes trip
        exif = open_image(record["file_name"]).getexif()
        stated = (exif.get_ifd(_EXIF).get(_TAKEN), exif.get(_CHANGED))
        days = (_DAY.match(str(day)) for day in stated)
        return next((day.groups() for day in days if day), None)
    return None


def _by_patient(records: Records, _: object) -> Keys:
    return groups_of(PATIENT, records, f"--rule {PATIENT}")[0]


def _by_table(records: Records, path: object) -> Keys:
    return groups_of(str(path), records, f"--rule groups={path}")[0]


def _by_block(records: Records, side: object) -> Keys:
    """Squares of a map, of ``side`` metres, by where the middle of an image lies."""
    middles: list[tuple[float, float] | None] = ask_each(_middle, records, "reading where images lie")
    degrees = float(str(side)) / METRES
    return [middle and _block(*middle, degrees) for middle in middles]


def _middle(record: dict) -> tuple[float, float] | None:
    """Longitude and latitude of a whole file, in degrees; None of one without coordinates."""
    place = place_of(record["file_name"])
    if place is None:
        return None
    height, width = look_at(record["file_name"])[:2]
    points = place.on_map(np.array([[width / 2, height / 2]]))
    (point,) = reprojected(geo_package("shapely").points(points), place.crs, WGS84)
    return (point.x, point.y) if np.isfinite([point.x, point.y]).all() else None


def _block(longitude: float, latitude: float, side: float) -> tuple[int, int]:
    """Row and column of a block of ``side`` degrees along a meridian, in rows of which each has its own columns."""
    row = int(np.floor(latitude / side))
    shrunk = np.cos(np.radians((row + 0.5) * side))
    return row, int(np.floor(longitude * shrunk / side))


RULES: dict[str, Callable[[Records, object], Keys]] = {
    "folder": _by_folder,
    "video": _by_video,
    "pattern": _by_pattern,
    "day": _by_day,
    PATIENT: _by_patient,
    "block": _by_block,
    "groups": _by_table,
}
