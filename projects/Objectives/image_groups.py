"""Which group an image is of: the file of NEIGHBORS.GROUPS, and how a group reaches a batch."""

import hashlib
import io
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from projects.Pixels.dicom import patient_of
from revisit.data.images.image_bytes import UnreadableImageError, first_bytes
from revisit.data.sources.file_names import expect_files, names_by_place
from revisit.data.sources.inspection import IMAGE_CHECK_REGISTRY
from revisit.data.sources.records import Records, ask_each
from revisit.data.views.annotation import DrawnImage, ViewAnnotator
from revisit.errors import UserError, expect, first_few, translated
from revisit.keys import is_read
from revisit.markdown import CsvDicts

from detectron2.config import CfgNode

KEY = "NEIGHBORS.GROUPS"
OWN = "self"  # each image is a group
PATIENT = "patient"  # of DICOM files
FILE = "file"  # of windows of one scan
_HEAD = 2**20  # bytes, in which a DICOM file names its patient
NO_GROUP = -1  # of the queue's random rows

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WithGroups(ViewAnnotator):
    """Adds ``group``, (B,) int64 of at least 0 in a batch, to what another annotator adds."""

    other: ViewAnnotator
    groups: str  # NEIGHBORS.GROUPS

    def prepare(self, records: Records) -> Records:
        """The records with the number of their ``group``.

        Raises:
            UserError: see groups_of; or all images are of one group.
        """
        numbers = range(len(records))
        if self.groups != OWN:
            numbers = numbered_groups(self.groups, records)
        grouped = []
        for record, number in zip(records, numbers, strict=True):
            grouped.append(record | {"group": number})
        return self.other.prepare(grouped)

    def __call__(self, image: DrawnImage) -> dict[str, np.ndarray]:
        group = image.record.get("group", NO_GROUP)  # where a step is planned only pixels are known
        return self.other(image) | {"group": np.array(group)}

    def draw(self, tiles: list[np.ndarray], views: Mapping) -> None:
        self.other.draw(tiles, views)


@IMAGE_CHECK_REGISTRY.register()
def have_groups(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    """Before a run: each image of DATASETS.TRAIN has a group. Raises UserError as groups_of."""
    path = cfg.NEIGHBORS.GROUPS
    is_grouped = is_read(cfg, KEY) and name in cfg.DATASETS.TRAIN
    if is_grouped and path not in ("", OWN):
        groups_of(path, records)


def numbered_groups(path: str, records: Records) -> list[int]:
    """``groups_of`` by numbers; what there is to say of them is logged."""
    groups, unused = groups_of(path, records)
    sizes = Counter(groups)
    expect(len(sizes) > 1, f"{KEY} {path}: all images are of group {groups[0]}: expected two groups at least")
    logger.info(f"{KEY} {path}: {len(sizes):,} groups of {min(sizes.values()):,} to {max(sizes.values()):,} images")
    if unused:
        logger.warning(f"{KEY} {path} names {len(unused):,} images that DATASETS.TRAIN lacks: {first_few(unused)}")
    return [group_number(group) for group in groups]


def groups_of(path: str, records: Records, asked: str = "") -> tuple[list[str], list[str]]:
    """The group of each record's image, as a CSV file or a digest of a DICOM file's patient calls it, or the file of
    which it is a window; and the names in the CSV file that no record has.

    A name is the data set's own, or one from the CSV file's folder.

    Args:
        asked: who asks for it, in messages; "": the key.

    Raises:
        UserError: see read_groups; an image has no group, or no file of its own.
    """
    named = asked or f"{KEY} {path}"
    expect_files(records, named, f"{OWN}, or a folder of images")
    if path == FILE:
        return [str(record["file_name"]) for record in records], []
    if path == PATIENT:
        return ask_each(partial(_patient, named=named), records, "reading whose images they are"), []
    groups = read_groups(path, asked)
    name_of = names_by_place(path, groups)
    files = [os.path.abspath(record["file_name"]) for record in records]
    missing = [file for file in files if file not in name_of]
    if missing:
        raise UserError(
            f"{named} has no group for {len(missing):,} of {len(records):,} images, such as {missing[0]}: expected a "
            "line file_name,group for each image"
        )
    used = [name_of[file] for file in files]
    unused = groups.keys() - set(used)
    return [groups[name] for name in used], sorted(unused)


def _patient(record: dict, named: str) -> str:
    file_name = record["file_name"]
    try:
        return patient_of(first_bytes(file_name, _HEAD))
    except UnreadableImageError as error:
        raise UserError(f"{named}: {file_name}: {error}") from error


def read_groups(path: str, asked: str = "") -> dict[str, str]:
    """The groups of a CSV file with the columns ``file_name`` and ``group``, by name; see groups_of.

    Raises:
        UserError: no such file; a column is missing; a line lacks a value; an image has two groups.
    """
    named = asked or f"{KEY} {path}"
    words = "" if asked else f", or {OWN}, {PATIENT} or {FILE}"
    expect(os.path.isfile(path), f"{named} is no file: expected a CSV file with file_name,group{words}")
    groups: dict[str, str] = {}
    group_at: dict[str, str] = {}  # by place
    folder = os.path.dirname(path)
    with translated(named, content=True):
        content = Path(path).read_bytes()
        content.partition(b"\n")[0].decode()  # names of files need not be text, but columns are
        lines = CsvDicts(io.StringIO(content.decode("utf-8-sig", errors="surrogateescape"), newline=""))
        check_header(lines.fieldnames or [])
        for line in lines:
            name = line["file_name"]
            group = line["group"]
            if not name or not group:
                raise ValueError(f"line {lines.line_num} lacks a value: expected file_name,group")
            groups[name] = group
            place = os.path.abspath(os.path.join(folder, name))
            before = group_at.setdefault(place, group)  # which another name may have
            if before != group:
                raise ValueError(f"{name} is of groups {before} and {group}: expected one line for each image")
    return groups


def check_header(header: Sequence[str]) -> None:
    """Raise ValueError unless the columns are among those of a file."""
    if not {"file_name", "group"} <= set(header):
        columns = ", ".join(header) or "nothing"
        raise ValueError(f"its first line has {columns}: expected file_name,group")


def group_number(group: str) -> int:
    """A number of at least 0 by the group's name alone, so that a resumed run, and a longer file, have the same."""
    digest = hashlib.blake2b(group.encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
