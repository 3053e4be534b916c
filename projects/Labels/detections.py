"""What detectors that have not learned an image find in it: missing boxes, and boxes that lie next to their objects."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from projects.Labels.labels import Labels
from projects.Labels.suspects import Suspect, box_text, of_label, of_place
from projects.Reports.matching import JudgedImage, best_threshold, curve, judge
from revisit.boxes.boxes import NOTHING, Boxes, iou
from revisit.boxes.predictions_file import (
    OF_PREDICTIONS,
    PREDICTIONS,
    evaluated_set,
    read_predictions,
    read_results,
    refused,
)
from revisit.data.sources.catalog import get_records
from revisit.errors import expect, first_few

FREE = 0.3  # IoU with every box below which a detection lies on none
DOUBLE = 0.5  # IoU from which on two detections are of one thing
SHIFTED = (0.1, 0.8)  # IoU of a box with its detection: below it is another object's, above the box is right

Results = Mapping[str, Boxes]  # by the real path of an image
NumberedImages = Sequence[tuple[int, JudgedImage]]  # each after the number of its record


def read_detections(places: Sequence[Path], class_names: Sequence[str]) -> Results:
    """Of predictions.json files of tools/predict.py, and of folders of runs that ended with an evaluation. Classes
    count as ``class_names`` do.

    Raises:
        UserError: other files, or classes that the labels do not have.
    """
    by_file: dict[str, list[Boxes]] = defaultdict(list)
    for place in places:
        with refused(
            f"--boxes {place}", "expected predictions.json with the images.json of tools/predict.py, or a run's folder"
        ):
            of_files, names = _of_run(place) if place.is_dir() else read_predictions(place)
        other = [name for name in names if name not in class_names]
        expect(not other, f"--boxes {place} has classes that the labels do not have: {first_few(other)}")
        numbers = np.array([class_names.index(name) for name in names], int)
        for file, found in of_files:
            by_file[os.path.realpath(file)].append(replace(found, classes=numbers[found.classes]))
    return {file: Boxes.joined(parts) for file, parts in by_file.items()}


def _of_run(place: Path) -> tuple[list[tuple[str, Boxes]], list[str]]:
    scored = evaluated_set(place / OF_PREDICTIONS)
    records = get_records(scored.name)
    scored.changed_labels(records)  # which may have been mended since
    files = {record["image_id"]: record["file_name"] for record in records}
    found = read_results(place / PREDICTIONS, files, scored.classes)
    return list(zip(files.values(), found, strict=True)), list(scored.classes.values())


def judged(labels: Labels, results: Results) -> NumberedImages:
    """The images that detectors have looked at, with the numbers of their records, matched as COCO matches them.

    Raises UserError where there is none.
    """
    images = []
    for number, record in enumerate(labels.records):
        of_image = results.get(os.path.realpath(record["file_name"]))
        if of_image is not None:
            images.append((number, judge(record, of_image)))
    expect(bool(images), "--boxes: none of these images is among the labelled ones; expected the same files")
    return images


def how_good(images: NumberedImages) -> str:
    """A line that says how much the suspicions of these detectors are worth, by the labels, wrong ones included."""
    of_all = curve([image for _, image in images])
    threshold = best_threshold([image for _, image in images])
    if of_all is None or not threshold:
        return "the detectors find none of the labelled boxes: no box is rightly suspected to be missing or shifted"
    last = np.flatnonzero(of_all.scores >= threshold)[-1]
    return (
        f"the detectors find {of_all.recall[last]:.0%} of the labelled boxes of {len(images):,} images, and "
        f"{of_all.precision[last]:.0%} of what they find is labelled so "
        f"(AP50 {100 * of_all.average_precision():.1f}, scores from {threshold:.2f} on)"
    )


def missing(images: NumberedImages, labels: Labels) -> list[Suspect]:
    """Detections that lie on no box of any class, and in no crowd or difficult object, each thing once, with their
    classes as suggestions.

    Suspicion is the sum of the scores of all classes there, at most 1, times (1 - the largest IoU with a box): a thing
    may be seen for sure whose class is not.
    """
    suspects = []
    for number, image in images:
        overlap = image.overlap.max(axis=1, initial=0)
        crowds = Boxes.of_annotations([box for box in image.record["annotations"] if box.get("iscrowd")])
        in_crowds = iou(image.predicted.xyxy, crowds.xyxy, np.ones(len(crowds), bool)).max(axis=1, initial=0)
        free = (image.match == NOTHING) & (np.maximum(overlap, in_crowds) < FREE)
        for best, score in _things(image, np.flatnonzero(free)):
            box, name = image.predicted.xyxy[best], labels.class_names[image.predicted.classes[best]]
            suspects.append(of_place(labels, number, box, score * (1 - overlap[best]), name))
    return suspects


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


def shifted(images: NumberedImages, labels: Labels) -> list[Suspect]:
    """Boxes whose best detection of their class overlaps them little, with the detection's box as suggestion; suspicion
    is its score times (1 - IoU).

    A detection that has found another box says nothing of this one. Only detections count from the score on where
    their F1 is highest.
    """
    threshold = best_threshold([image for _, image in images])
    suspects = []
    for number, image in images:
        of_image = range(*np.searchsorted(labels.images, (number, number + 1)))
        for true, index in enumerate(of_image):
            of_class = image.predicted.classes == image.truth.classes[true]
            is_free = np.isin(image.match, (true, NOTHING))
            is_candidate = of_class & is_free & (image.predicted.scores >= threshold)
            overlap = np.where(is_candidate, image.overlap[:, true], 0)
            best = int(overlap.argmax()) if len(overlap) else 0
            if len(overlap) and SHIFTED[0] < overlap[best] < SHIFTED[1]:
                suspicion = image.predicted.scores[best] * (1 - overlap[best])
                suggestion = box_text(image.predicted.xyxy[best])
                suspects.append(of_label(labels, "shifted", index, suspicion, suggestion))
    return suspects
