"""Boxes in other layouts than COCO's: YOLO's text files and Pascal VOC's XML files become dicts in COCO's format.

Both have a file of labels for each image, at the image's place below another folder. Trees of Pascal VOC keep their
own records, because Detectron2's evaluator of Pascal VOC reads the tree itself.
"""

import logging
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from revisit.data.images.reader import read_size
from revisit.data.sources.coco_boxes import load_coco_dict
from revisit.data.sources.image_folders import NAMES_IN_LABELS, label_files, read_lines, read_split, require_files
from revisit.data.sources.records import Records, sample
from revisit.errors import UserError, expect, translated
from revisit.files import read_yaml

from detectron2.data.datasets.pascal_voc import CLASS_NAMES
from detectron2.structures import BoxMode

VOC_CLASSES = tuple(CLASS_NAMES)
CORNERS = ("xmin", "ymin", "xmax", "ymax")
YEAR_OF_FILE, YEAR_OF_PATH = re.compile(rb"<folder>\s*VOC_?(20\d\d)"), re.compile(r"VOC_?(20\d\d)", re.I)
DIFFICULT = {"": False, "unspecified": False, "0": False, "false": False, "1": True, "true": True}
YAML, DATA_YAML = (".yaml", ".yml"), "data.yaml"
CORNERS_OF_A_TURNED_BOX = 4  # which many write as an outline

logger = logging.getLogger(__name__)


def load_yolo(images: Path, labels: Path, names: Path | None = None, *, name: str) -> Records:
    """Every image below ``images``, with the objects of the text file at its place below ``labels``.

    A line is ``class x y width height``, of the box's centre and sides, or ``class x y x y x y ...``, an outline; the
    class a number from 0 on, the others shares of the image's width and height. An image without a file shows nothing.
    Without ``names`` they are those of classes.txt or data.yaml in ``labels`` or the two folders around it. Where
    ``kpt_shape`` of data.yaml, or of ``names``, says so, a line is a box and the keypoints that it says, not read here.

    Raises:
        UserError: see label_files; no class names; a line that is neither of the two.
    """
    folders = (labels, labels.parent, labels.parent.parent)
    near = [folder / file for folder in folders for file in (NAMES_IN_LABELS, DATA_YAML)]
    places = [names] if names else near
    file_of_names = next(filter(Path.is_file, places), None)
    if file_of_names is None:
        message = f"class names unknown: none of {', '.join(map(str, places))} is there"
        raise UserError(f"{message}; expected one, or a file of names as third part, yolo:IMAGES:LABELS:NAMES")
    classes, keypoints = read_names(file_of_names), read_keypoint_shape([file_of_names, *near])
    pictures, objects = [], []
    for number, (image, file) in enumerate(label_files(images, labels, ".txt").items()):
        size = read_size(image)
        pictures.append({"id": number, "file_name": os.path.relpath(image, images), **size})
        for line, words in enumerate(map(str.split, read_lines(file, "labels") if file else []), start=1):
            with translated(f"{file}, line {line}", content=True):
                if words:
                    objects.append({"image_id": number, **yolo_object(words, size, len(classes), keypoints)})
    _warn_of_keypoints(objects, labels)
    return load_coco_dict(_coco_dict(pictures, objects, classes), images, name, str(labels))


def yolo_object(words: list[str], size: dict[str, int], num_classes: int, keypoints: int = 0) -> dict:
    """``category_id``, ``bbox`` and perhaps ``segmentation``, in px, of a line with so many numbers of ``keypoints``
    after the box. Raises ValueError: what is wrong."""
    label, values = int(words[0]), np.array(words[1:], float)
    if not 0 <= label < num_classes:
        raise ValueError(f"class {label}, expected a number from 0 to {num_classes - 1}")
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
        return {"category_id": label + 1, "bbox": [*(centre - sides / 2).tolist(), *sides.tolist()]}
    low, high = points.min(0), points.max(0)
    box = [*low.tolist(), *(high - low).tolist()]
    return {"category_id": label + 1, "bbox": box, "segmentation": [points.ravel().tolist()]}


def read_names(file: Path) -> list[str]:
    """Classes by number: the lines of a text file, or ``names`` of the YAML file that YOLO is trained with, as text.

    Raises:
        UserError: no such file, or no names in it.
    """
    with translated(f"reading class names from {file}", content=True):
        if file.suffix in YAML:
            names = read_yaml(file, as_text=True).get("names")
            names = [names.get(str(number)) for number in range(len(names))] if isinstance(names, dict) else names
        else:
            names = "\n".join(read_lines(file, "class names")).rstrip().splitlines()
        are_texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
    names = [name.strip() for name in names] if are_texts else []
    sound = bool(names) and all(names) and len(set(names)) == len(names)
    expect(sound, f"{file} holds no class names: expected different ones, of the classes 0, 1, 2 and so on")
    return names


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


def _warn_of_keypoints(objects: list[dict], labels: Path) -> None:
    """Warn of outlines like boxes and keypoints: of one length, all points in or near the box of the first two."""
    outlines = [np.reshape(thing["segmentation"][0], (-1, 2)) for thing in objects if "segmentation" in thing]
    lengths = set(map(len, outlines))
    if len(outlines) < 2 or len(lengths) > 1 or min(lengths) <= CORNERS_OF_A_TURNED_BOX:
        return
    if all((np.abs(points[2:] - points[0]) <= 0.75 * points[1]).all() for points in outlines):
        found = (
            f"{labels}: all {len(outlines):,} outlines have {len(outlines[0])} points, as a box and its keypoints would"
        )
        logger.warning(f"{found}: if they are, write kpt_shape into {DATA_YAML} among or above the labels")


def load_voc_xml(images: Path, annotations: Path, with_difficult: str = "", *, name: str) -> Records:
    """Every image below ``images``, with the objects of the XML file at its place below ``annotations``.

    The classes are the names that occur, sorted. An image without a file shows nothing. Difficult objects are neither
    learned from nor scored, as crowds of COCO, unless they are asked for by ``with_difficult``.

    Raises:
        UserError: see label_files; a file that is no such XML, or an object without a box.
    """
    pictures, objects, labels = [], [], []
    for number, (image, file) in enumerate(label_files(images, annotations, ".xml").items()):
        size, things = read_voc_annotation(file, Path(image)) if file else (read_size(image), [])
        pictures.append({"id": number, "file_name": os.path.relpath(image, images), **size})
        for label, (x0, y0, x1, y1), difficult in things:
            labels.append(label)
            ignored = int(difficult and not with_difficult)
            objects.append({"image_id": number, "bbox": [x0, y0, x1 - x0, y1 - y0], "iscrowd": ignored})
    classes = sorted(set(labels))
    expect(classes, f"{annotations} has no object in its XML files: expected some, with a name and a bndbox")
    if zeros := sum(min(thing["bbox"][:2]) < 0 for thing in objects):
        counted = f"{annotations}: {zeros:,} of {len(objects):,} boxes begin at 0, but Pascal VOC counts pixels from 1"
        logger.warning(f"{counted}: if these files count from 0, every box is read one pixel too far left and up")
    for thing, label in zip(objects, labels, strict=True):
        thing["category_id"] = classes.index(label) + 1
    return load_coco_dict(_coco_dict(pictures, objects, classes), images, name, str(annotations))


def load_voc(path: Path, split: str, classes: tuple[str, ...] = VOC_CLASSES) -> Records:
    """Boxes of a tree in Pascal VOC's layout, by ImageSets/Main/SPLIT.txt: ``image_id`` is the name in the split."""
    records = []
    for name in read_split(path / "ImageSets" / "Main" / f"{split}.txt"):
        image = path / "JPEGImages" / f"{name}.jpg"
        size, things = read_voc_annotation(path / "Annotations" / f"{name}.xml", image, classes)
        boxes = [
            {"category_id": classes.index(label), "bbox": corners, "bbox_mode": BoxMode.XYXY_ABS}
            for label, corners, _ in things
        ]
        records.append({"file_name": str(image), "image_id": name, **size, "annotations": boxes})
    return require_files(records)


def voc_metadata(path: Path, split: str, classes: tuple[str, ...] = VOC_CLASSES) -> dict:
    """What Detectron2's evaluator of Pascal VOC has to know."""
    year = year_of_voc(path, split)
    # It knows two years, which differ in how AP is integrated: 11 points until 2009, then the area under the curve.
    metric = 2012 if year and year >= 2010 else 2007
    place = {"dirname": str(path), "split": split, "year": metric, "year_is_known": year is not None}
    return {"evaluator_type": "pascal_voc", "thing_classes": list(classes), **place}


def year_of_voc(path: Path, split: str) -> int | None:
    """The year of a tree by <folder> of some annotations of the split, else by its path; None where neither has one."""
    split_file = path / "ImageSets" / "Main" / f"{split}.txt"
    names = sample(read_split(split_file), 20) if split_file.is_file() else []
    files = [file for name in names if (file := path / "Annotations" / f"{name}.xml").is_file()]
    years = {year for file in files for year in YEAR_OF_FILE.findall(file.read_bytes()[:1000])}
    years = years or set(YEAR_OF_PATH.findall(str(path.resolve()))[-1:])
    return int(years.pop()) if len(years) == 1 else None


def read_voc_annotation(
    file: Path, image: Path, classes: tuple[str, ...] = ()
) -> tuple[dict[str, int], list[tuple[str, list[float], bool]]]:
    """``height`` and ``width`` in px, and of every object its class, [x0, y0, x1, y1] in px, whether it is difficult.

    The size is that of ``image`` where the annotation has none. Raises UserError: no XML, an object without a box or of
    no class, or of none of ``classes`` where there are some.
    """
    with translated(f"reading {file}", content=True):
        tree, things = ElementTree.parse(file).getroot(), []
        for thing in tree.findall("object"):
            label = thing.findtext("name", "").strip()
            if not label or (classes and label not in classes):
                raise ValueError(f"class {label!r}, expected {classes or 'a name'}; voc_xml takes any")
            x0, y0, x1, y1 = (float(thing.findtext(f"bndbox/{side}", f"no {side}")) for side in CORNERS)
            # VOC counts pixels from 1 and includes the last one.
            difficult = thing.findtext("difficult", "").strip().lower()
            if difficult not in DIFFICULT:
                raise ValueError(f"difficult {difficult!r}, expected 0 or 1")
            things.append((label, [x0 - 1.0, y0 - 1.0, x1, y1], DIFFICULT[difficult]))
        height, width = (int(tree.findtext(f"size/{side}") or 0) for side in ("height", "width"))
    return {"height": height, "width": width} if height and width else read_size(image), things


def _coco_dict(pictures: list[dict], objects: list[dict], classes: list[str]) -> dict:
    """In COCO's format, in which ids begin with 1."""
    return {
        "categories": [{"id": number, "name": label} for number, label in enumerate(classes, start=1)],
        "images": pictures,
        "annotations": [{"id": number, **thing} for number, thing in enumerate(objects, start=1)],
    }
