"""YOLO's text files: ``yolo:FOLDER_OF_IMAGES:FOLDER_OF_LABELS[:FILE_OF_NAMES]``."""

import logging
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from revisit.data.images.reader import size_if_known
from revisit.data.sources.coco_boxes import COCO_METADATA, load_box_files
from revisit.data.sources.label_files import label_files
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.data.sources.split_files import NAMES_IN_LABELS, YAML, read_class_names, read_lines
from revisit.errors import UserError, expect, translated
from revisit.files import read_yaml

DATA_YAML = "data.yaml"
BOX, TRIANGLE = 4, 6  # numbers after the class
FURTHER = 2  # numbers, at most, after them
CORNERS_OF_A_TURNED_BOX = 4  # which many write as an outline

logger = logging.getLogger(__name__)

Line = tuple[str, list[str]]  # an object's place, for messages, and its words: a class and numbers


def load_yolo(images: Path, labels: Path, names: Path | None = None) -> LabelledSet:
    """Every image below ``images``, with the objects of the text file at its place below ``labels``.

    A line is ``class x y width height``, of the box's centre and sides, or ``class x y x y x y ...``, an outline; the
    class a number from 0 on, the others shares of the image's width and height. Further numbers after a box are not
    read, and counted in ``left_out``. An image without a file shows nothing.
    Without ``names`` they are those of classes.txt or data.yaml in ``labels`` or the two folders around it. Where
    ``kpt_shape`` of data.yaml, or of ``names``, says so, a line is a box and the keypoints that it says, not read here.

    Raises:
        UserError: see label_files; no class names; a line that is neither of the two, or may be both.
    """
    files = label_files(images, labels, ".txt").values()
    classes, keypoints = _classes_and_keypoints(labels, names)
    lines_of = {file: _read_lines(file) for file in files if file}
    lines = list(chain.from_iterable(lines_of.values()))
    end = 1 + BOX if are_boxes(lines, keypoints) else None

    def read(file: Path, image: Path) -> tuple[dict[str, int], list[dict]]:
        size, objects = size_if_known(image), []
        for place, words in lines_of[file]:
            with translated(place, content=True):
                objects.append(yolo_object(words[:end], size, classes))
        return size, objects

    labelled = load_box_files(images, labels, ".txt", read, classes)
    longer = [place for place, words in lines if end and len(words) > end + keypoints]
    if longer:
        labelled.metadata["left_out"].append(
            f"{len(longer):,} of {len(lines):,} lines have further numbers after their box, such as {longer[0]}: a "
            "confidence or a track, not read; each line is an object"
        )
    boxes = chain.from_iterable(record["annotations"] for record in labelled.records)
    outlines = chain.from_iterable(box.get("segmentation", ()) for box in boxes)
    _warn_of_keypoints([np.reshape(outline, (-1, 2)) for outline in outlines], labels)
    return labelled


def _classes_and_keypoints(labels: Path, names: Path | None) -> tuple[list[str], int]:
    near = []
    for folder in (labels, labels.parent, labels.parent.parent):
        near += [folder / NAMES_IN_LABELS, folder / DATA_YAML]
    candidates = [names] if names else near
    file_of_names = next(filter(Path.is_file, candidates), None)
    if file_of_names is None:
        raise UserError(
            f"class names unknown: none of {', '.join(map(str, candidates))} is there; expected one, or a file of "
            "names as third part, yolo:IMAGES:LABELS:NAMES"
        )
    return read_class_names(file_of_names), read_keypoint_shape([file_of_names, *near])


def _read_lines(file: Path) -> list[Line]:
    lines = enumerate(read_lines(file, "labels"), start=1)
    return [(f"{file}, line {number}", words) for number, text in lines if (words := text.split())]


def are_boxes(lines: Sequence[Line], keypoints: int) -> bool:
    """Whether lines are boxes, perhaps with so many numbers of ``keypoints``, and with a confidence and a track, which
    detectors and trackers write after these. All lines together tell: six numbers may be a triangle, too.

    Raises:
        UserError: other keypoints; six numbers in all lines, the last of which need be no tracks.
    """
    if not lines:
        return True
    counts = {len(words) - 1: place for place, words in lines}
    for count, place in counts.items() if keypoints else ():
        expect(
            count - keypoints in range(BOX, BOX + FURTHER + 1),
            f"{place}: {count} numbers after the class, expected {BOX} of a box and {keypoints} of keypoints",
        )
    if keypoints or not counts.keys() <= {BOX, BOX + 1, TRIANGLE}:
        return keypoints > 0
    of_tracks = all(_whole(words[-1]) >= 0 for _, words in lines if len(words) - 1 == TRIANGLE)
    expect(
        of_tracks or len(counts) > 1,
        f"{lines[0][0]}: {TRIANGLE} numbers after the class may be a triangle, or a box and two more, and no other "
        "line tells: expected 4 of a box; or 8 of a triangle, its last point twice",
    )
    return of_tracks or BOX + 1 in counts


def _whole(word: str) -> int:
    """A whole number, perhaps with a point; -1 of another word."""
    digits, _, zeros = word.partition(".")
    return int(digits) if digits.isdecimal() and not zeros.strip("0") else -1


def yolo_object(words: list[str], size: dict[str, int], classes: Sequence[str]) -> dict:
    """``name`` of the class, ``bbox`` and perhaps ``segmentation``, in px, of a line. Raises ValueError: what is
    wrong."""
    label, values = _whole(words[0]), np.array(words[1:], float)
    if not 0 <= label < len(classes):
        raise ValueError(f"class {words[0]}, expected a whole number from 0 to {len(classes) - 1}")
    if len(values) < BOX or len(values) % 2:
        raise ValueError(
            f"{len(values)} numbers after the class, expected 4 of a box, or pairs of an outline; keypoints need "
            f"kpt_shape in {DATA_YAML}"
        )
    if not (np.abs(values) <= 2).all():  # nor is NaN
        raise ValueError(f"{values.tolist()}, expected shares of the image's width and height, 0 to 1")
    points = values.reshape(-1, 2) * (size["width"], size["height"])
    if len(points) == 2:
        centre, sides = points
        return {"name": classes[label], "bbox": _box(centre - sides / 2, sides)}
    low, high = points.min(0), points.max(0)
    outline = points.ravel().tolist()
    return {"name": classes[label], "bbox": _box(low, high - low), "segmentation": [outline]}


def _box(corner: np.ndarray, sides: np.ndarray) -> list[float]:
    return [*corner.tolist(), *sides.tolist()]


def read_keypoint_shape(places: list[Path]) -> int:
    """How many numbers follow the box in a line, by ``kpt_shape`` of the first YAML file among ``places``; else 0.

    Raises:
        UserError: a ``kpt_shape`` that is not [points, 2 or 3].
    """
    file = next((place for place in places if place.suffix in YAML and place.is_file()), None)
    content = read_yaml(file, as_text=True) if file else {}
    if not isinstance(content, dict) or "kpt_shape" not in content:
        return 0
    with translated(f"{file}, kpt_shape {content['kpt_shape']}, expected [points, 2] or [points, 3]", content=True):
        points, numbers = map(int, content["kpt_shape"])
        if points < 1 or numbers not in (2, 3):
            raise ValueError("out of range")
    return points * numbers


def _warn_of_keypoints(outlines: list[np.ndarray], labels: Path) -> None:
    """Warn of outlines like boxes and keypoints: of one length, all points in or near the box of the first two."""
    lengths = set(map(len, outlines))
    if len(outlines) < 2 or len(lengths) > 1 or min(lengths) <= CORNERS_OF_A_TURNED_BOX:
        return
    if all(map(_is_like_keypoints, outlines)):
        logger.warning(
            f"{labels}: all {len(outlines):,} outlines have {len(outlines[0])} points, as a box and its keypoints "
            f"would: if they are, write kpt_shape into {DATA_YAML} among or above the labels"
        )


def _is_like_keypoints(points: np.ndarray) -> bool:
    """Whether the first two points of an outline could be a box's centre and sides, with all others in or near it."""
    centre, sides, *_ = points
    from_centre = np.abs(points[2:] - centre)
    return bool((from_centre <= 0.75 * sides).all())


LABEL_LAYOUT_REGISTRY.register(
    LabelLayout("yolo", "FOLDER_OF_IMAGES:FOLDER_OF_LABELS[:FILE_OF_NAMES]", load_yolo, COCO_METADATA)
)
