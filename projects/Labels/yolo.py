"""YOLO's text files: ``yolo:FOLDER_OF_IMAGES:FOLDER_OF_LABELS[:FILE_OF_NAMES]``."""

import logging
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

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
FURTHER = 2  # numbers, at most, that detectors and trackers write after an object: a confidence, a track
SHORT = 8  # numbers after the class, up to which an outline with others after it may be something else
MARGIN = 0.01  # of an image, that a box may reach over its edge
CORNERS_OF_A_TURNED_BOX = 4  # which many write as an outline

logger = logging.getLogger(__name__)


class Line(NamedTuple):
    """An object in a text file."""

    place: str  # file and number, for messages
    words: list[str]  # the class, and numbers


def load_yolo(images: Path, labels: Path, names: Path | None = None) -> LabelledSet:
    """Every image below ``images``, with the objects of the text file at its place below ``labels``.

    A line is ``class x y width height``, of the box's centre and sides, or ``class x y x y x y ...``, an outline; the
    class a number from 0 on, the others shares of the image's width and height. What ``numbers_read`` leaves out
    stands in ``left_out``. An image without a file shows nothing.
    Without ``names`` they are those of classes.txt or data.yaml in ``labels`` or the two folders around it. Where
    ``kpt_shape`` of data.yaml, or of ``names``, says so, a line is a box and the keypoints that it says, not read here.

    Raises:
        UserError: see label_files; no class names; a line that is neither of the two, or may be both.
    """
    near = []
    for folder in (labels, labels.parent, labels.parent.parent):
        near += [folder / NAMES_IN_LABELS, folder / DATA_YAML]
    candidates = [names] if names else near
    file_of_names = next(filter(Path.is_file, candidates), None)
    if file_of_names is None:
        message = f"class names unknown: none of {', '.join(map(str, candidates))} is there"
        raise UserError(f"{message}; expected one, or a file of names as third part, yolo:IMAGES:LABELS:NAMES")
    classes = read_class_names(file_of_names)
    keypoints = read_keypoint_shape([file_of_names, *near])
    lines_of = {file: _read_lines(file) for file in label_files(images, labels, ".txt").values() if file}
    lines = list(chain.from_iterable(lines_of.values()))
    read_of = numbers_read(lines, keypoints)
    outlines: list[np.ndarray] = []

    def read(file: Path, image: Path) -> tuple[dict[str, int], list[dict]]:
        size, objects = size_if_known(image), []
        for place, (label, *numbers) in lines_of[file]:
            with translated(place, content=True):
                objects.append(yolo_object([label, *numbers[: read_of[len(numbers)]]], size, classes, keypoints))
        for thing in objects:
            outlines.extend(np.reshape(outline, (-1, 2)) for outline in thing.get("segmentation", ()))
        return size, objects

    labelled = load_box_files(images, labels, ".txt", read, classes)
    labelled.metadata["left_out"] += _further_numbers(lines, read_of)
    _warn_of_keypoints(outlines, labels)
    return labelled


def _read_lines(file: Path) -> list[Line]:
    lines = enumerate(read_lines(file, "labels"), start=1)
    return [Line(f"{file}, line {number}", words) for number, text in lines if (words := text.split())]


def numbers_read(lines: Sequence[Line], keypoints: int) -> dict[int, int]:
    """By how many numbers a line has after its class: how many of them are the object's.

    The others are what detectors and trackers write after a box, also one with so many numbers of ``keypoints``, or
    after an outline. All lines together tell which: six numbers may be an outline, too.

    Raises:
        UserError: six numbers of which nothing tells what they are.
    """
    counts = {len(words) - 1 for _, words in lines}
    if keypoints:
        whole = BOX + keypoints
        return {count: count if count > whole + FURTHER else min(count, whole) for count in counts}
    if counts <= {BOX, BOX + 1, TRIANGLE} and (BOX + 1 in counts or _are_boxes(lines)):
        return dict.fromkeys(counts, BOX)
    # Keypoints whose kpt_shape is missing have as many numbers in all lines.
    further = _further(counts, lines) if len(counts) > 1 and max(counts) > SHORT else 0
    return {count: count - further for count in counts}


def _are_boxes(lines: Sequence[Line]) -> bool:
    """Whether lines of six numbers end in whole ones, as of tracks; False where one would be a box out of its image."""
    longer = [line for line in lines if len(line.words) - 1 == TRIANGLE]
    numbers = np.array([_numbers(line) for line in longer]).reshape(-1, TRIANGLE)
    if (numbers[:, -1] % 1 == 0).all():
        return True
    centres, sides = numbers[:, :2], numbers[:, 2:BOX]
    is_triangle = np.abs(centres - 0.5) + sides / 2 > 0.5 + MARGIN
    either = f"{longer[0].place}: {TRIANGLE} numbers after the class may be a triangle, or a box and two more"
    way_out = "expected 4 of a box; or of a triangle 8, its last point twice"
    expect(bool(is_triangle.any()), f"{either}, and no other line tells: {way_out}")
    return False


def _further(counts: set[int], lines: Sequence[Line]) -> int:
    """How many numbers follow each outline: 1 where all are odd, FURTHER where all end in whole ones, as of tracks."""
    if all(count % 2 for count in counts):
        return 1
    last = np.array([_numbers(line)[-1] for line in lines if len(line.words) > 1])
    return FURTHER if BOX not in counts and (last % 1 == 0).all() and last.max() > 1 else 0


def _numbers(line: Line) -> np.ndarray:
    with translated(line.place, content=True):
        return np.array(line.words[1:], float)


def yolo_object(words: list[str], size: dict[str, int], classes: Sequence[str], keypoints: int = 0) -> dict:
    """``name`` of the class, ``bbox`` and perhaps ``segmentation``, in px, of a line with so many numbers of
    ``keypoints`` after the box. Raises ValueError: what is wrong."""
    whole, _, zeros = words[0].partition(".")
    label = int(whole) if whole.isdecimal() and not zeros.strip("0") else -1
    values = np.array(words[1:], float)
    if not 0 <= label < len(classes):
        raise ValueError(f"class {words[0]}, expected a whole number from 0 to {len(classes) - 1}")
    if keypoints and len(values) != BOX + keypoints:
        raise ValueError(f"{len(values)} numbers after the class, expected 4 of a box and {keypoints} of keypoints")
    values = values[:BOX] if keypoints else values
    if len(values) < BOX or len(values) % 2:
        message = f"{len(values)} numbers after the class, expected 4 of a box, or pairs of an outline"
        raise ValueError(f"{message}; keypoints need kpt_shape in {DATA_YAML}")
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


def _further_numbers(lines: Sequence[Line], read_of: dict[int, int]) -> list[str]:
    """In words what is not read of lines; none where all is."""
    longer = [place for place, words in lines if len(words) - 1 > read_of[len(words) - 1]]
    if not longer:
        return []
    shown = f"{len(longer):,} of {len(lines):,} lines have further numbers after their object, such as {longer[0]}"
    return [f"{shown}: a detector's confidence or a track, not read, so that each line is an object"]


def _warn_of_keypoints(outlines: list[np.ndarray], labels: Path) -> None:
    """Warn of outlines like boxes and keypoints: of one length, all points in or near the box of the first two."""
    lengths = set(map(len, outlines))
    if len(outlines) < 2 or len(lengths) > 1 or min(lengths) <= CORNERS_OF_A_TURNED_BOX:
        return
    if all(map(_is_like_keypoints, outlines)):
        shape = f"all {len(outlines):,} outlines have {len(outlines[0])} points, as a box and its keypoints would"
        remedy = f"if they are, write kpt_shape into {DATA_YAML} among or above the labels"
        logger.warning(f"{labels}: {shape}: {remedy}")


def _is_like_keypoints(points: np.ndarray) -> bool:
    """Whether the first two points of an outline could be a box's centre and sides, with all others in or near it."""
    centre, sides, *_ = points
    from_centre = np.abs(points[2:] - centre)
    return bool((from_centre <= 0.75 * sides).all())


LABEL_LAYOUT_REGISTRY.register(
    LabelLayout("yolo", "FOLDER_OF_IMAGES:FOLDER_OF_LABELS[:FILE_OF_NAMES]", load_yolo, COCO_METADATA)
)
