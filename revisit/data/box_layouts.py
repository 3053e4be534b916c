"""Boxes in other layouts than COCO's: YOLO's text files and Pascal VOC's XML files become dicts in COCO's format.

Both have a file of labels for each image, at the image's place below another folder. Trees of Pascal VOC keep their
own records, because Detectron2's evaluator of Pascal VOC reads the tree itself.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from xml.etree import ElementTree

import yaml
from yaml import YAMLError

from revisit.data.coco_boxes import load_coco_dict
from revisit.data.image_folders import existing, load_folder, read_lines, read_split
from revisit.data.reader import read_size
from revisit.data.records import Records
from revisit.errors import UserError, expect, first_line

from detectron2.data.datasets.pascal_voc import CLASS_NAMES
from detectron2.structures import BoxMode

Label = TypeVar("Label")
VOC_CLASSES = tuple(CLASS_NAMES)
NAMES_IN_LABELS = "classes.txt"  # which tools for labelling put beside the labels

logger = logging.getLogger(__name__)


def load_yolo(images: Path, labels: Path, names: Path | None = None, *, name: str) -> Records:
    """Every image below ``images``, with the objects of the text file at its place below ``labels``.

    A line is ``class x y width height``, of the box's centre and sides, or ``class x y x y x y ...``, an outline; the
    class a number from 0 on, the others shares of the image's width and height. An image without a file shows nothing.
    Without ``names`` they are those of classes.txt or data.yaml in ``labels`` or the two folders around it.

    Raises:
        UserError: no images; labels of which none is an image's; a line that is neither of the two.
    """
    places = [names] if names else _places_of_names(labels)
    file_of_names = next(filter(Path.is_file, places), None)
    if file_of_names is None:
        message = f"class names unknown: none of {', '.join(map(str, places))} is there"
        raise UserError(f"{message}; expected one, or a file of names as third part, yolo:IMAGES:LABELS:NAMES")
    classes = read_names(file_of_names)
    lines = _labels_of(images, labels, ".txt", lambda file: read_lines(file, "file of labels"), (file_of_names,))
    pictures, objects = [], []
    for number, (file_name, (file, of_image)) in enumerate(lines.items()):
        size = read_size(file_name)
        pictures.append({"id": number, "file_name": os.path.relpath(file_name, images), **size})
        for line, words in enumerate(map(str.split, of_image or ()), start=1):
            try:
                if words:
                    objects.append({"image_id": number, **yolo_object(words, size, len(classes))})
            except ValueError as error:
                raise UserError(f"{file}, line {line}: {error}") from error
    return load_coco_dict(_coco_dict(pictures, objects, classes), images, name, str(labels))


def yolo_object(words: list[str], size: dict[str, int], num_classes: int) -> dict:
    """``category_id``, ``bbox`` and perhaps ``segmentation``, in px, of the words of a line.

    Raises:
        ValueError: what is wrong with the line.
    """
    label, values, width, height = words[0], list(map(float, words[1:])), size["width"], size["height"]
    if not (label.isascii() and label.isdigit() and int(label[:9]) < num_classes):
        raise ValueError(f"class {label[:20]!r}, expected a number from 0 to {num_classes - 1}")
    if not (len(values) == 4 or (len(values) >= 6 and len(values) % 2 == 0)):
        raise ValueError(f"{len(values)} numbers after the class, expected 4 of a box, or pairs of an outline")
    if not all(abs(value) <= 2 for value in values):  # nor is NaN
        wrong = next(value for value in values if not abs(value) <= 2)
        raise ValueError(f"{wrong:g}, expected shares of the image's width and height, 0 to 1")
    if len(values) == 4:
        x, y, w, h = values
        box = [(x - w / 2) * width, (y - h / 2) * height, w * width, h * height]
        return {"category_id": int(label) + 1, "bbox": box}
    outline = [value * (height if n % 2 else width) for n, value in enumerate(values)]
    xs, ys = outline[::2], outline[1::2]
    box = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
    return {"category_id": int(label) + 1, "bbox": box, "segmentation": [outline]}


def _places_of_names(labels: Path) -> list[Path]:
    """Where the names of YOLO's classes may lie with the labels."""
    folders = (labels, labels.parent, labels.parent.parent)
    return [folder / name for folder in folders for name in (NAMES_IN_LABELS, "data.yaml")]


def read_names(file: Path) -> list[str]:
    """Classes by number: the lines of a text file, or ``names`` of the YAML file that YOLO is trained with.

    Raises:
        UserError: no such file, or no names in it.
    """
    expect(file.is_file(), f"file of class names {file} not found: expected a name in each line, or YOLO's YAML")
    try:
        text = file.read_text(encoding="utf-8")
        names = yaml.safe_load(text)["names"] if file.suffix in (".yaml", ".yml") else text.rstrip().splitlines()
        if isinstance(names, dict):
            numbered = {int(number): name for number, name in names.items()}
            names = [numbered[n] for n in range(len(names))]
        names = [str(name).strip() for name in names]
    except (OSError, ValueError, YAMLError, KeyError, TypeError) as error:
        raise UserError(f"{file} holds no class names ({first_line(error)}): expected one for each class") from error
    sound = bool(names) and all(names) and len(set(names)) == len(names)
    expect(sound, f"{file} holds no class names: expected different ones, of the classes 0, 1, 2 and so on")
    return names


def load_voc_xml(images: Path, annotations: Path, *, name: str) -> Records:
    """Every image below ``images``, with the objects of the XML file at its place below ``annotations``.

    The classes are the names that occur, sorted. An image without a file shows nothing.

    Raises:
        UserError: no images; files of which none is an image's, that are no such XML, or with an object without a box.
    """
    trees = _labels_of(images, annotations, ".xml", read_voc_annotation)
    things = [(file, thing) for file, tree in trees.values() if tree is not None for thing in tree.findall("object")]
    classes = sorted({_class_of(thing, file) for file, thing in things})
    expect(classes, f"{annotations} has no object in its XML files: expected some, with a name and a bndbox")
    pictures, objects = [], []
    for number, (file_name, (file, tree)) in enumerate(trees.items()):
        size = read_size(file_name) if tree is None else voc_size(tree, file, Path(file_name))
        pictures.append({"id": number, "file_name": os.path.relpath(file_name, images), **size})
        for thing in () if tree is None else tree.findall("object"):
            x0, y0, x1, y1 = voc_corners(thing, file)
            category = classes.index(_class_of(thing, file)) + 1
            objects.append({"image_id": number, "category_id": category, "bbox": [x0, y0, x1 - x0, y1 - y0]})
    return load_coco_dict(_coco_dict(pictures, objects, classes), images, name, str(annotations))


def load_voc(path: Path, split: str, classes: tuple[str, ...] = VOC_CLASSES) -> Records:
    """Boxes of a tree in Pascal VOC's layout, by ImageSets/Main/SPLIT.txt: ``image_id`` is the name in the split.

    Raises:
        UserError: see read_split and read_voc_annotation; an image that is not there, an object of another class, an
            object without a box.
    """
    records = []
    for name in read_split(path / "ImageSets" / "Main" / f"{split}.txt"):
        file, image = path / "Annotations" / f"{name}.xml", path / "JPEGImages" / f"{name}.jpg"
        tree = read_voc_annotation(file, split)
        boxes = []
        for thing in tree.findall("object"):
            label = _class_of(thing, file)
            if label not in classes:
                other = "" if classes != VOC_CLASSES else "; boxes of other classes: voc_xml:IMAGES:XML_FOLDER"
                message = f"{file} names an object of the class {label!r}"
                raise UserError(f"{message}, expected one of {', '.join(classes)}{other}")
            corners = voc_corners(thing, file)
            boxes.append({"category_id": classes.index(label), "bbox": corners, "bbox_mode": BoxMode.XYXY_ABS})
        size = voc_size(tree, file, image)
        records.append({"file_name": str(image), "image_id": name, **size, "annotations": boxes})
    return existing(records)


def voc_metadata(path: Path, split: str, classes: tuple[str, ...] = VOC_CLASSES) -> dict:
    """What Detectron2's evaluator of Pascal VOC has to know."""
    # It knows two years, which differ in how AP is integrated; 2007 means 11 points.
    place = {"dirname": str(path), "split": split, "year": 2007}
    return {"evaluator_type": "pascal_voc", "thing_classes": list(classes), **place}


def read_voc_annotation(file: Path, split: str = "") -> ElementTree.Element:
    """The XML of an image, which a split may name. Raises UserError where it is missing, or no XML."""
    expect(os.path.isfile(file), f"{file} not found, but the split {split} names {file.stem}")
    try:
        return ElementTree.parse(file).getroot()
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # the latter: encodings that are not known
        message = f"{file} cannot be read ({first_line(error)}): expected one of Pascal VOC's annotations"
        raise UserError(message) from error


def voc_size(tree: ElementTree.Element, file: Path, image: Path) -> dict[str, int]:
    """``height`` and ``width`` in px, of the image itself where its annotation has none."""
    texts = [tree.findtext(f"size/{side}") for side in ("height", "width")]
    if None in texts:
        return read_size(image)
    try:
        height, width = map(int, texts)
    except ValueError as error:
        raise UserError(f"{file} has a height of {texts[0]!r} and a width of {texts[1]!r}: expected pixels") from error
    return {"height": height, "width": width} if height and width else read_size(image)


def voc_corners(thing: ElementTree.Element, file: Path) -> list[float]:
    """[x0, y0, x1, y1] in px of an object. Raises UserError for one without a box."""
    texts = [thing.findtext(f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
    try:
        x0, y0, x1, y1 = (float(text or "") for text in texts)
    except ValueError as error:
        message = f"{file} has a {_class_of(thing, file)} without a box (xmin, ymin, xmax, ymax: {texts})"
        raise UserError(f"{message}: expected four numbers, in px") from error
    return [x0 - 1.0, y0 - 1.0, x1, y1]  # VOC counts pixels from 1 and includes the last one


def _class_of(thing: ElementTree.Element, file: Path) -> str:
    label = (thing.findtext("name") or "").strip()
    if not label:
        raise UserError(f"{file} has an object without a name: expected the name of its class")
    return label


def _labels_of(
    images: Path, labels: Path, suffix: str, read: Callable[[Path], Label], other_files: tuple[Path, ...] = ()
) -> dict[str, tuple[Path, Label | None]]:
    """By file name of an image, in order: the place of its file of labels, and what ``read`` gives of it, if it exists.

    Args:
        other_files: that are no labels, although they lie among them.

    Raises:
        UserError: no folder of labels, no images, or labels of which none is an image's.
    """
    expect(labels.is_dir(), f"folder of labels {labels} not found")
    files = [record["file_name"] for record in load_folder(images)]
    places = {file: labels / Path(file).relative_to(images).with_suffix(suffix) for file in files}
    contents = {file: (place, read(place) if place.is_file() else None) for file, place in places.items()}
    given = {file for file in labels.rglob(f"*{suffix}") if file not in other_files and file.name != NAMES_IN_LABELS}
    lost = sorted(given - set(places.values()))
    message = f"{labels}: {len(lost)} of {len(given)} files of labels belong to no image below {images}"
    expect(len(lost) < len(given) or not given, f"{message}: expected the same names, and the same folders")
    if lost:
        logger.warning(f"{message}, such as {lost[0].name}")
    return contents


def _coco_dict(pictures: list[dict], objects: list[dict], classes: list[str]) -> dict:
    """In COCO's format, in which ids begin with 1."""
    return {
        "categories": [{"id": number, "name": label} for number, label in enumerate(classes, start=1)],
        "images": pictures,
        "annotations": [{"id": number, **thing} for number, thing in enumerate(objects, start=1)],
    }
