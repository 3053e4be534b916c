"""Spoil the labels of a data set in known ways, and count how many of them a list of suspects has first."""

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projects.Labels.labels import Labels
from projects.Labels.suspects import Suspect, box_text, row_of
from revisit.boxes.boxes import iou, sides_of, with_sides
from revisit.boxes.coco_files import size_of, write_data_set
from revisit.errors import expect
from revisit.files import write_whole

KINDS = ("swapped", "missing", "shifted", "odd")
MOVED = (0.3, 0.6)  # IoU of a shifted box with where it was
STRETCHED = (1.8, 2.5)  # factor of an odd box's sides, or of its width over its height
TRIES = 1000
SAME = 1.0  # px by which the sides of two boxes that are the same may differ
OVERLAP = 0.5  # IoU from which on a suspect lies on a missing box
SPOILED, DATA_SET = "spoiled.json", "data_set.json"


class Spoiled(NamedTuple):
    """One label that was made wrong."""

    kind: str
    file_name: str
    box: list[float]  # x0, y0, x1, y1 px, as it is now; of a missing one where it was
    label: str  # as it is now; of a missing one what it was
    right: str  # the suggestion that puts it right: its class, or its box as ``box_text``


def spoil(labels: Labels, share: float, seed: int, output: Path) -> list[Spoiled]:
    """Write DATA_SET, where a ``share`` of the boxes is wrong in each of KINDS, and SPOILED, which ones; returns these.

    A box is wrong in one way at most. Masks, which a changed box would contradict, are left out.
    """
    rng = np.random.default_rng(seed)
    count = round(share * len(labels.classes))
    drawn = rng.permutation(len(labels.classes))[: count * len(KINDS)]
    kind_of = {index: KINDS[n // count] for n, index in enumerate(drawn.tolist())}
    objects, spoiled, files = defaultdict(list), [], labels.files.tolist()
    for index, image in enumerate(labels.images.tolist()):
        box, number = labels.boxes[index].astype(np.float64), int(labels.classes[index])
        kind = kind_of.get(index, "")
        right = box_text(box) if kind in CHANGES else labels.class_names[number]
        if kind == "swapped":
            number = _another(number, len(labels.class_names), rng)
        if kind in CHANGES:
            box = CHANGES[kind](box, size_of(labels.records[image]), rng)
        if kind:
            spoiled.append(Spoiled(kind, files[index], box.tolist(), labels.class_names[number], right))
        if kind != "missing":
            objects[image].append({"bbox": with_sides(box).tolist(), "category_id": number + 1})
    images = [_with_objects(record, objects[image]) for image, record in enumerate(labels.records)]
    write_data_set(output / DATA_SET, images, labels.class_names)
    write_whole(output / SPOILED, json.dumps([wrong._asdict() for wrong in spoiled]))
    return spoiled


def _with_objects(record: dict, objects: list[dict]) -> dict[str, Any]:
    height, width = size_of(record)
    return {"file_name": os.path.abspath(record["file_name"]), "height": height, "width": width, "objects": objects}


def _another(number: int, count: int, rng: np.random.Generator) -> int:
    """A class that is not this one, all alike."""
    step = int(rng.integers(1, count))
    return (number + step) % count


def _shifted(box: np.ndarray, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """A box of the same sides, inside the image, whose IoU with the old one is MOVED; the last of TRIES otherwise."""
    height, width = size
    sides = sides_of(box)
    for _ in range(TRIES):
        offset = rng.uniform(-0.6, 0.6, 2) * sides
        corner = np.clip(box[:2] + offset, 0, np.maximum([width, height] - sides, 0))
        moved = np.concatenate([corner, corner + sides])
        if MOVED[0] <= iou(moved[None], box[None])[0, 0] <= MOVED[1]:
            break
    return moved


def _odd(box: np.ndarray, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """A box with the same centre, stretched or shrunk along one side or both, as far as the image goes."""
    factor = rng.uniform(*STRETCHED) ** rng.choice([-1, 1])
    factors = np.array([(factor, factor), (factor, 1), (1, factor)][rng.integers(3)])
    centre, half = (box[:2] + box[2:]) / 2, sides_of(box) / 2 * factors
    height, width = size
    return np.clip(np.concatenate([centre - half, centre + half]), 0, [width, height, width, height])


CHANGES = {"shifted": _shifted, "odd": _odd}


def read_spoiled(folder: Path) -> list[Spoiled]:
    """What ``spoil`` has written. Raises UserError where it has not."""
    path = folder / SPOILED
    expect(path.is_file(), f"{path}: no such file; expected the --output of this script")
    return [Spoiled(**wrong) for wrong in json.loads(path.read_text())]


def precision(suspects: Sequence[Mapping[str, Any]], spoiled: Sequence[Spoiled], kind: str) -> dict[str, float]:
    """Of the first suspects of a kind, as many as were spoiled in this way: the share that was, and the share that was
    spoiled in any way. Where there are fewer suspects, the missing ones count as wrong."""
    count = sum(wrong.kind == kind for wrong in spoiled)
    first = [suspect for suspect in suspects if suspect["kind"] == kind][:count]
    free = {number: wrong for number, wrong in enumerate(spoiled)}
    hits = {"this way": 0, "any way": 0}
    for suspect in first:
        numbers = [number for number, wrong in free.items() if _is(suspect, wrong)]
        of_kind = [number for number in numbers if free[number].kind == kind]
        hits["this way"] += bool(of_kind)
        hits["any way"] += bool(numbers)
        if of_kind:
            del free[of_kind[0]]  # two suspects of one box are one box
    return {name: hit / max(count, 1) for name, hit in hits.items()} | {"spoiled": count, "listed": len(first)}


def accepted(listed: Mapping[int, Suspect], spoiled: Sequence[Spoiled]) -> list[list[str]]:
    """Rows of suspects.csv as a person who knows what was spoiled keeps them: of each kind the first, as many as were
    spoiled so, those whose label was spoiled in any way, with the suggestion that puts it right."""
    free, rows = list(spoiled), []
    for kind in KINDS:
        count = sum(wrong.kind == kind for wrong in spoiled)
        of_kind = [(number, suspect) for number, suspect in listed.items() if suspect.kind == kind]
        for number, suspect in of_kind[:count]:
            wrong = next((wrong for wrong in free if _is(suspect._asdict(), wrong)), None)
            if wrong:
                free.remove(wrong)
                rows.append(row_of(number, suspect._replace(suggestion=wrong.right)))
    return rows


def _is(suspect: Mapping[str, Any], spoiled: Spoiled) -> bool:
    """Whether a suspect is of this label, or of the place of a missing one."""
    if suspect["file_name"] != spoiled.file_name:
        return False
    box, other = np.array([suspect["box"]]), np.array([spoiled.box])
    if (suspect["kind"] == "missing") != (spoiled.kind == "missing"):
        return False
    if spoiled.kind == "missing":
        return bool(iou(box, other)[0, 0] >= OVERLAP)
    return bool((np.abs(box - other) <= SAME).all())
