"""Correct what a person has accepted, in a new file: rows of suspects.csv, kept, copied or edited."""

import csv
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projects.Labels.labels import Labels, read_labels_of
from projects.Labels.suspects import COLUMNS, NOT_A_LABEL, Suspect, box_text, of_label, read_suspects
from revisit.boxes.boxes import in_coco, with_sides
from revisit.boxes.coco_files import folder_of, size_of, write_data_set
from revisit.data.images.reader import UNKNOWN_SIZE, read_size
from revisit.data.sources.coco_truth import read_coco
from revisit.data.sources.records import WITHOUT_LABELS, Records
from revisit.errors import UserError, expect, first_line
from revisit.files import write_correctable
from revisit.markdown import CsvDicts

from detectron2.data import MetadataCatalog

REMOVE = "remove"
KEY = ("kind", "file_name", "box", "label")  # by which a row is recognised; its suggestion may be edited
SUGGESTION = "a class, a box as x0 y0 x1 y1 or the word remove"


class Change(NamedTuple):
    """What becomes of a suspect."""

    suspect: Suspect
    number: int | None = None  # its new class
    box: list[float] | None = None  # its new box, x0, y0, x1, y1 px
    is_removed: bool = False


def accept(accepted: Path, folder: Path) -> tuple[int, Path]:
    """Write FOLDER/corrected.json, the data set in COCO's format with what was accepted; how many rows that were, and
    the file.

    Raises:
        UserError: rows that are none of FOLDER/suspects.json, suggestions that mean nothing, labels that have changed;
            see expect_sizes.
    """
    name, suspects = read_suspects(folder)
    labels = read_labels_of(name)
    expect(labels.of == "box", f"{name} has a class for each image: move the files to the folders of their classes")
    rows = _rows(accepted)
    changes = [_change(row, suspects, labels, place) for place, row in rows]
    _expect_one_each(changes, [place for place, _ in rows])
    path = folder / "corrected.json"
    if file := MetadataCatalog.get(name).get("json_file"):
        content, ids = read_coco(Path(file)), [record["image_id"] for record in labels.records]
    else:
        expect_sizes(labels.records)
        images = [in_coco_format(record) for record in labels.records]
        write_data_set(path, images, labels.class_names, folder=folder_of(images, name))
        content, ids = read_coco(path), range(1, len(labels.records) + 1)
    _correct(content, ids, labels, changes)
    write_correctable(path, json.dumps(content))
    return len(changes), path


def _rows(accepted: Path) -> list[tuple[str, dict[str, str]]]:
    """The rows of a CSV, each with words that say where it stands."""
    try:
        with open(accepted, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = CsvDicts(file)
            lacking = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            lines = [] if lacking else [(f"{accepted}, line {reader.line_num}", row) for row in reader]
    except (OSError, csv.Error) as error:
        raise UserError(
            f"--table {accepted} cannot be read ({first_line(error)}): expected rows of suspects.csv"
        ) from error
    expect(
        not lacking,
        f"--table {accepted} lacks {', '.join(lacking)}: expected the columns of suspects.csv, with commas between "
        "them",
    )
    expect(bool(lines), f"--table {accepted} has no rows: expected those of suspects.csv that are right")
    return lines


def _change(row: dict[str, str], suspects: dict[int, Suspect], labels: Labels, place: str) -> Change:
    number = row["id"] or ""
    suspect = suspects.get(int(number)) if number.isdecimal() else None
    _expect_text(row, suspect, place)
    written = suspect._asdict() | {"box": box_text(suspect.box)} if suspect else {}
    if suspect is None or any(row[column] != written[column] for column in KEY):
        raise UserError(f"{place}: row {number!r} is none of suspects.json: expected a row of its suspects.csv")
    _check_unchanged(suspect, labels)
    return _read(suspect, row["suggestion"] or "", labels, place)


def _expect_text(row: dict[str, str], suspect: Suspect | None, place: str) -> None:
    """Raises UserError for what a spreadsheet has not written in UTF-8, unless it is the name of the suspect's file."""
    texts = {column: text for column, text in row.items() if text and text.encode(errors="ignore").decode() != text}
    odd = [text for column, text in texts.items() if text != getattr(suspect, column, "")]
    expect(
        not odd,
        f"{place} has {odd[:1]}, which is no text in UTF-8: expected the code of suspects.csv, so save the table as "
        "CSV UTF-8",
    )


def _expect_one_each(changes: Sequence[Change], places: Sequence[str]) -> None:
    """Raises UserError for two rows that say what becomes of the same label, or of one object without a label."""
    places_of: dict[tuple, str] = {}
    for change, place in zip(changes, places, strict=True):
        suspect = change.suspect
        of_label = (suspect.image, suspect.place, *(suspect.box if suspect.place == NOT_A_LABEL else ()))
        for part in _parts_of(change):
            other = places_of.setdefault((*of_label, part), place)
            expect(
                other == place,
                f"{place} and {other} change the same label of {suspect.file_name}: expected one row for it",
            )


def _parts_of(change: Change) -> list[str]:
    """What of a label it changes; of one that is removed all."""
    changed = {"class": change.number is not None, "box": change.box is not None}
    return [part for part, is_changed in changed.items() if is_changed or change.is_removed]


def _check_unchanged(suspect: Suspect, labels: Labels) -> None:
    """Raises UserError where the label is not what it was when it was suspected."""
    if suspect.index == NOT_A_LABEL:
        is_same = suspect.image < len(labels.records)
        is_same = is_same and labels.records[suspect.image]["file_name"] == suspect.file_name
    else:
        is_same = suspect.index < len(labels.classes) and _describes(suspect, labels)
    expect(is_same, f"the labels of {suspect.file_name} have changed since they were checked: check them again")


def _describes(suspect: Suspect, labels: Labels) -> bool:
    """Whether the label of its number has its place, box and class; its file may have moved."""
    now = of_label(labels, suspect.kind, suspect.index, 0, suspect.suggestion)
    return (now.image, now.place, now.box, now.label) == (suspect.image, suspect.place, suspect.box, suspect.label)


def _read(suspect: Suspect, suggestion: str, labels: Labels, place: str) -> Change:
    """What a suggestion means. Raises UserError for one that means nothing."""
    is_new = suspect.index == NOT_A_LABEL
    problem = f"{place}: the suggestion is {suggestion!r}"
    is_unclear = suggestion == REMOVE and not is_new and REMOVE in labels.class_names
    expect(not is_unclear, f"{problem}, which is a class, too: give that another name, and check again")
    if suggestion in labels.class_names:
        return Change(suspect, labels.class_names.index(suggestion), suspect.box if is_new else None)
    if suggestion == REMOVE and not is_new:
        return Change(suspect, is_removed=True)
    box = _box(suggestion)
    expected = f"a class, one of {', '.join(labels.class_names[:20])}" if is_new else SUGGESTION
    expect(bool(box) and not is_new, f"{problem}, expected {expected}")
    height, width = size_of(labels.records[suspect.image])
    is_inside = box[0] < width and box[1] < height and box[2] > 0 and box[3] > 0
    expect(is_inside, f"{problem}, outside its image of {width} x {height} px: expected a box in it")
    return Change(suspect, box=box)


def _box(text: str) -> list[float]:
    """Four numbers that are a box; [] of another text."""
    try:
        sides = [float(word) for word in text.split()]
    except ValueError:
        return []
    is_box = len(sides) == 4 and all(map(math.isfinite, sides)) and sides[0] < sides[2] and sides[1] < sides[3]
    return sides if is_box else []


def expect_sizes(records: Records) -> None:
    """Raises UserError for an image with boxes that cannot be read: their px are those of an image of UNKNOWN_SIZE."""
    for record in records:
        if record.get("annotations") and UNKNOWN_SIZE.items() <= record.items():
            try:
                read_size(record["file_name"])
            except UserError as error:
                raise UserError(f"{error}, whose boxes can be written: copy it again, or remove it") from error


def in_coco_format(record: dict) -> dict[str, Any]:
    """A record with its objects, for ``write_data_set``."""
    height, width = size_of(record)
    objects = [in_coco(box) for box in record["annotations"]]
    kept = {key: record[key] for key in ("file_name", WITHOUT_LABELS) if key in record}
    return {**kept, "height": height, "width": width, "objects": objects}


def _correct(content: dict[str, Any], ids: Sequence[Any], labels: Labels, changes: Sequence[Change]) -> None:
    """Change, remove and add the entries that were accepted; all else of a data set stays as it is."""
    read = _entries_as_read(content, ids, labels)
    numbers = {str(category["name"]).strip(): category["id"] for category in content["categories"]}
    removed = set()  # by id(): an entry of the user's may have any key
    looked_at = set()  # images that somebody has found an object in
    for suspect, number, box, is_removed in changes:
        if suspect.place == NOT_A_LABEL:
            entry = _added(content["annotations"], ids[suspect.image])
            looked_at.add(ids[suspect.image])
        else:
            entry = read[suspect.image][suspect.place]
        if number is not None:
            entry["category_id"] = numbers[labels.class_names[number]]
        if box is not None:
            x, y, width, height = with_sides(np.array(box)).tolist()
            entry |= {"bbox": [x, y, width, height], "area": width * height}
            entry.pop("segmentation", None)  # which was the mask of another box
        if is_removed:
            removed.add(id(entry))
    for image in content["images"]:
        if image["id"] in looked_at:
            image.pop(WITHOUT_LABELS, None)
    content["annotations"] = [entry for entry in content["annotations"] if id(entry) not in removed]


def _entries_as_read(content: dict[str, Any], ids: Sequence[Any], labels: Labels) -> list[list[dict]]:
    """By the records of ``labels``, whose images have these ids in the file: of its entries of an image those that the
    record has, in its order."""
    of_image = defaultdict(list)
    for entry in content["annotations"]:
        of_image[entry["image_id"]].append(entry)
    read = []
    for record, image in zip(labels.records, ids, strict=True):
        left = iter(of_image[image])
        boxes = [in_coco(box)["bbox"] for box in record["annotations"]]
        read.append([next(entry for entry in left if entry["bbox"] == box) for box in boxes])
    return read


def _added(entries: list[dict], image: Any) -> dict:
    """A new entry of an image, with an id that no other has."""
    ids = [entry["id"] for entry in entries if isinstance(entry.get("id"), int)]
    entries.append({"id": 1 + max(ids, default=0), "image_id": image, "iscrowd": 0})
    return entries[-1]
