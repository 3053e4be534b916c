"""The labels that are suspected, in the order in which to look at them."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from projects.Labels.labels import Labels
from projects.Labels.sizes import at_edge, odd_suspicion, oddness
from projects.Labels.votes import Vote
from revisit.boxes.predictions_file import expect_on_disk
from revisit.errors import UserError, first_line
from revisit.files import write_whole
from revisit.markdown import csv_table

NOT_A_LABEL = -1  # instead of the number of a label, and of the place of an annotation
COLUMNS = ("id", "kind", "suspicion", "file_name", "box", "label", "suggestion")
LIST = "suspects.json"


class Suspect(NamedTuple):
    """A label that may be wrong, or a place that may lack one."""

    kind: str  # swapped, missing, shifted or odd
    suspicion: float  # 0..1
    index: int  # of the label; NOT_A_LABEL of a missing one
    image: int  # number of the record
    place: int  # of the annotation in it; NOT_A_LABEL of a missing one
    file_name: str
    box: list[float]  # x0, y0, x1, y1 px; of a missing one the detection's
    label: str  # "" of a missing one
    suggestion: str  # a class, or a box as ``box_text``; "" where nothing is suggested


def among_all(suspects: Sequence[Suspect], labels: Labels, files: np.ndarray) -> list[Suspect]:
    """Suspects among the labels in these files, which could be read, by their numbers among all: they are accepted by
    these."""
    numbers = np.flatnonzero(np.isin(labels.files, files))
    return [
        suspect if suspect.index == NOT_A_LABEL else suspect._replace(index=int(numbers[suspect.index]))
        for suspect in suspects
    ]


def box_text(box: Sequence[float]) -> str:
    """A box for people and for CSV: x0, y0, x1, y1 px with a decimal, between blanks."""
    return " ".join(f"{side:.1f}" for side in box)


def swapped(labels: Labels, vote: Vote) -> list[Suspect]:
    """Labels whose class has less support than another one."""
    others, suspicion = vote.others(labels.classes), vote.suspicion(labels.classes)
    indices = np.flatnonzero(suspicion > 0.5)
    return [of_label(labels, "swapped", n, suspicion[n], labels.class_names[others[n]]) for n in indices]


def odd(labels: Labels) -> list[Suspect]:
    """Boxes of an unusual size or shape that lie inside their image, since the edge cuts objects off."""
    suspicion = odd_suspicion(oddness(labels.boxes, labels.classes))
    suspicion[at_edge(labels.boxes, *labels.sizes.T)] = 0
    return [of_label(labels, "odd", n, suspicion[n], "") for n in np.flatnonzero(suspicion)]


def of_place(labels: Labels, image: int, box: np.ndarray, suspicion: float, suggestion: str) -> Suspect:
    """A box (4,) xyxy in a record's image that nobody has labelled, and its class."""
    where = (NOT_A_LABEL, image, NOT_A_LABEL, labels.records[image]["file_name"], _rounded(box))
    return Suspect("missing", round(float(suspicion), 6), *where, "", suggestion)


def of_label(labels: Labels, kind: str, index: int, suspicion: float, suggestion: str) -> Suspect:
    """The label of this number."""
    image, place = int(labels.images[index]), int(labels.places[index])
    name = labels.records[image]["file_name"]
    label = labels.class_names[labels.classes[index]]
    where = (int(index), image, place, name, _rounded(labels.boxes[index]))
    return Suspect(kind, round(float(suspicion), 6), *where, label, suggestion)


def _rounded(box: np.ndarray) -> list[float]:
    return np.asarray(box, np.float64).round(2).tolist()


def ordered(suspects: Sequence[Suspect], count: int) -> list[Suspect]:
    """The ``count`` of each kind that are suspected most, all together by their suspicion."""
    kept, counts = [], Counter()
    for suspect in sorted(suspects, key=lambda suspect: -suspect.suspicion):
        counts[suspect.kind] += 1
        if counts[suspect.kind] <= count:
            kept.append(suspect)
    return kept


def write_suspects(folder: Path, suspects: Sequence[Suspect], name: str) -> None:
    """Write LIST and suspects.csv, numbered from 1; ``name`` is that of the data set."""
    numbered = list(enumerate(suspects, start=1))
    entries = [{"id": number, **suspect._asdict()} for number, suspect in numbered]
    write_whole(folder / LIST, json.dumps({"labels": name, "suspects": entries}, indent=1))
    write_whole(folder / "suspects.csv", csv_table(COLUMNS, starmap(row_of, numbered)))


def row_of(number: int, suspect: Suspect) -> list[str]:
    """A suspect as a row of suspects.csv, by COLUMNS."""
    of_file = [suspect.file_name, box_text(suspect.box)]
    return [str(number), suspect.kind, f"{suspect.suspicion:.4f}", *of_file, suspect.label, suspect.suggestion]


def read_suspects(folder: Path) -> tuple[str, dict[int, Suspect]]:
    """The data set's name, and the suspects of an earlier call by their ids. Raises UserError where there are none."""
    path = folder / LIST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        listed = {entry["id"]: _suspect(entry) for entry in content["suspects"]}
        name = content["labels"]
        expect_on_disk(name)
        return name, listed
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read ({first_line(error)}): expected the --output of an earlier call with --data"
        ) from error


def _suspect(entry: dict) -> Suspect:
    """Raises ValueError for fields of other types than those that were written."""
    suspect = Suspect(*map(entry.__getitem__, Suspect._fields))
    pairs = zip(suspect, Suspect.__annotations__.values(), strict=True)
    is_sound = all(type(value) is kind for value, kind in pairs if kind in (str, int))
    is_box = isinstance(suspect.box, list) and len(suspect.box) == 4 and {*map(type, suspect.box)} <= {int, float}
    if not (is_sound and is_box and np.isfinite(suspect.box).all()):
        raise ValueError(f"suspect {entry['id']!r} has a field of another type")
    return suspect
