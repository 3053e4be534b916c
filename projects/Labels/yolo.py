"""YOLO's text files: ``yolo:FOLDER_OF_IMAGES:FOLDER_OF_LABELS[:FILE_OF_NAMES]``."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from revisit.data.images.reader import read_size
from revisit.data.sources.coco_boxes import COCO_METADATA, load_box_files
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.data.sources.split_files import NAMES_IN_LABELS, YAML, read_class_names, read_lines
from revisit.errors import UserError, translated
from revisit.files import read_yaml

DATA_YAML = "data.yaml"
CORNERS_OF_A_TURNED_BOX = 4  # which many write as an outline

logger = logging.getLogger(__name__)


def load_yolo(images: Path, labels: Path, names: Path | None = None) -> LabelledSet:
    """Every image below ``images``, with the objects of the text file at its place below ``labels``.

    A line is ``class x y width height``, of the box's centre and sides, or ``class x y x y x y ...``, an outline; the
    class a number from 0 on, the others shares of the image's width and height. An image without a file shows nothing.
    Without ``names`` they are those of classes.txt or data.yaml in ``labels`` or the two folders around it. Where
    ``kpt_shape`` of data.yaml, or of ``names``, says so, a line is a box and the keypoints that it says, not read here.

    Raises:
        UserError: see label_files; no class names; a line that is neither of the two.
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
    outlines: list[np.ndarray] = []

    def read(file: Path, image: Path) -> tuple[dict[str, int], list[dict]]:
        size = read_size(image)
        objects = _read_objects(file, size, classes, keypoints)
        for thing in objects:
            outlines.extend(np.reshape(outline, (-1, 2)) for outline in thing.get("segmentation", ()))
        return size, objects

    labelled = load_box_files(images, labels, ".txt", read, classes)
    _warn_of_keypoints(outlines, labels)
    return labelled


def _read_objects(file: Path, size: dict[str, int], classes: Sequence[str], keypoints: int) -> list[dict]:
    objects = []
    for line, text in enumerate(read_lines(file, "labels"), start=1):
        with translated(f"{file}, line {line}", content=True):
            if words := text.split():
                objects.append(yolo_object(words, size, classes, keypoints))
    return objects


def yolo_object(words: list[str], size: dict[str, int], classes: Sequence[str], keypoints: int = 0) -> dict:
    """``name`` of the class, ``bbox`` and perhaps ``segmentation``, in px, of a line with so many numbers of
    ``keypoints`` after the box. Raises ValueError: what is wrong."""
    label = int(words[0])
    values = np.array(words[1:], float)
    if not 0 <= label < len(classes):
        raise ValueError(f"class {label}, expected a number from 0 to {len(classes) - 1}")
    if keypoints and len(values) != 4 + keypoints:
        raise ValueError(f"{len(values)} numbers after the class, expected 4 of a box and {keypoints} of keypoints")
    values = values[:4] if keypoints else values
    if len(values) < 4 or len(values) == 5 or len(values) % 2:
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
