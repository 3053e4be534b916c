"""What detectors that have not learned an image find in it: missing boxes, and boxes that lie next to their objects."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from projects.Labels.labels import Labels
from projects.Reports.matching import JudgedImage, best_threshold, judge
from revisit.boxes.boxes import NOTHING, Boxes, iou
from revisit.boxes.predictions_file import PREDICTIONS, evaluated_set, read_predictions, read_results
from revisit.data.sources.catalog import get_records
from revisit.errors import UserError, expect, first_few, first_line

FREE = 0.3  # IoU with every box below which a detection lies on none
DOUBLE = 0.5  # IoU from which on two detections are of one thing
SHIFTED = (0.1, 0.8)  # IoU of a box with its detection: below it is another object's, above the box is right

Results = Mapping[str, Boxes]  # by the real path of an image


class Finding(NamedTuple):
    """A detection that contradicts the labels of an image."""

    image: int  # number of its record
    place: int  # annotation that lies next to it; -1 where there is none
    box: np.ndarray  # (4,) x0, y0, x1, y1 px, of the detection
    number: int  # its class
    suspicion: float  # 0..1


def read_detections(places: Sequence[Path], class_names: Sequence[str]) -> Results:
    """Of predictions.json files of tools/predict.py, and of folders of runs that ended with an evaluation. Classes
    count as ``class_names`` do.

    Raises:
        UserError: other files, or classes that the labels do not have.
    """
    by_file: dict[str, list[Boxes]] = defaultdict(list)
    for place in places:
        try:
            of_files, names = _of_run(place) if place.is_dir() else read_predictions(place)
        except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
            expected = "expected predictions.json with the images.json of tools/predict.py, or a run's folder"
            raise UserError(f"--detections {place} ({first_line(error)}): {expected}") from error
        other = [name for name in names if name not in class_names]
        expect(not other, f"--detections {place} has classes that the labels do not have: {first_few(other)}")
        numbers = np.array([class_names.index(name) for name in names], int)
        for file, found in of_files:
            by_file[os.path.realpath(file)].append(replace(found, classes=numbers[found.classes]))
    return {file: Boxes.joined(parts) for file, parts in by_file.items()}


def _of_run(place: Path) -> tuple[list[tuple[str, Boxes]], list[str]]:
    name, classes = evaluated_set(place)
    files = {record["image_id"]: record["file_name"] for record in get_records(name)}
    found = read_results(place / PREDICTIONS, files, classes)
    return list(zip(files.values(), found, strict=True)), list(classes.values())


def judged(labels: Labels, results: Results) -> list[tuple[int, JudgedImage]]:
    """The images that detectors have looked at, with the numbers of their records, matched as COCO matches them.

    Raises UserError where there is none.
    """
    images = []
    for number, record in enumerate(labels.records):
        of_image = results.get(os.path.realpath(record["file_name"]))
        if of_image is not None:
            images.append((number, judge(record, of_image)))
    expect(bool(images), "--detections: none of these images is among the labelled ones; expected the same files")
    return images


def missing(images: Sequence[tuple[int, JudgedImage]]) -> list[Finding]:
    """Detections that lie on no box of any class, each thing once.

    Suspicion is the sum of the scores of all classes there, at most 1, times (1 - the largest IoU with a box): a thing
    may be seen for sure whose class is not.
    """
    findings = []
    for number, image in images:
        overlap = image.overlap.max(axis=1, initial=0)
        free = (image.match == NOTHING) & (overlap < FREE)
        for best, score in _things(image, np.flatnonzero(free)):
            findings.append(_finding(image, best, number, -1, score * (1 - overlap[best])))
    return findings


def _things(image: JudgedImage, indices: np.ndarray) -> Iterator[tuple[int, float]]:
    """The best of the detections of every thing, and the sum of the best scores of its classes, at most 1."""
    found, rest = image.predicted, indices
    while len(rest):
        best = rest[0]
        same = iou(found.xyxy[[best]], found.xyxy[rest])[0] >= DOUBLE
        of_class = dict(zip(found.classes[rest[same]][::-1], found.scores[rest[same]][::-1], strict=True))
        yield int(best), min(1.0, float(sum(of_class.values())))
        same[0] = True  # also of a box without area
        rest = rest[~same]


def shifted(images: Sequence[tuple[int, JudgedImage]], labels: Labels) -> list[Finding]:
    """Boxes whose best detection of their class overlaps them little; suspicion is its score times (1 - IoU).

    A detection that has found another box says nothing of this one. Only detections count from the score on where
    their F1 is highest.
    """
    threshold = best_threshold([image for _, image in images])
    places = _places(labels)
    findings = []
    for number, image in images:
        for true, place in enumerate(places[number]):
            overlap = np.where(_may_be_of(image, true, threshold), image.overlap[:, true], 0)
            best = int(overlap.argmax()) if len(overlap) else 0
            if len(overlap) and SHIFTED[0] < overlap[best] < SHIFTED[1]:
                suspicion = image.predicted.scores[best] * (1 - overlap[best])
                findings.append(_finding(image, best, number, place, suspicion))
    return findings


def _may_be_of(image: JudgedImage, true: int, threshold: float) -> np.ndarray:
    """(predictions,) bool: of a true box's class, of at least this score, and not of another box."""
    of_class = image.predicted.classes == image.truth.classes[true]
    is_free = np.isin(image.match, (true, NOTHING))
    return of_class & is_free & (image.predicted.scores >= threshold)


def _places(labels: Labels) -> dict[int, list[int]]:
    """By record: the annotations that are no crowds, in order."""
    places = defaultdict(list)
    for image, place in zip(labels.images.tolist(), labels.places.tolist(), strict=True):
        places[image].append(place)
    return places


def _finding(image: JudgedImage, index: int, number: int, place: int, suspicion: float) -> Finding:
    predicted = image.predicted
    return Finding(number, place, predicted.xyxy[index], int(predicted.classes[index]), float(suspicion))
