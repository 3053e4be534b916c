"""Data sets with boxes or outlines in YOLO's layout: a text file for each image, a line for each object."""

from pathlib import Path

import yaml
from yaml import YAMLError

from revisit.data.box_datasets import check_used
from revisit.data.image_folders import Records, load_folder
from revisit.data.reader import read_size
from revisit.errors import UserError, expect, first_line

from detectron2.structures import BoxMode

NAMES_IN_LABELS = "classes.txt"  # which tools for labelling put beside the labels


def load_yolo(images: Path, labels: Path, names: Path | None = None) -> Records:
    """Every image below ``images``, with the objects of the text file at its place below ``labels``.

    A line is ``class x y width height``, of the box's centre and sides, or ``class x y x y x y ...``, an outline; the
    class a number from 0 on, the others shares of the image's width and height. An image without a file shows nothing.
    Without ``names`` they are those of classes.txt or data.yaml in ``labels`` or the two folders around it.

    Raises:
        UserError: no images; labels of which none is an image's; a line that is neither of the two.
    """
    expect(labels.is_dir(), f"folder of labels {labels} not found")
    names = names or find_names(labels)
    classes, records, used = read_names(names), load_folder(images), set()
    for number, record in enumerate(records):
        file = labels / Path(record["file_name"]).relative_to(images).with_suffix(".txt")
        size = read_size(record["file_name"])
        annotations = []
        if file.is_file():
            used.add(file)
            annotations = _read_objects(file, size["width"], size["height"], len(classes))
        record |= {"image_id": number, **size, "annotations": annotations}
    files = {file for file in labels.rglob("*.txt") if file != names and file.name != NAMES_IN_LABELS}
    check_used(labels, images, files, used)
    return records


def yolo_metadata(images: Path, labels: Path, names: Path | None = None) -> dict:
    """Scored as COCO; without names as long as there is no file of them, which loading will say."""
    names = names or next(filter(Path.is_file, _places_of_names(labels)), None)
    return {"evaluator_type": "coco"} | ({"thing_classes": read_names(names)} if names and names.is_file() else {})


def find_names(labels: Path) -> Path:
    """The file of class names that lies with the labels. Raises UserError where there is none."""
    places = _places_of_names(labels)
    found = next(filter(Path.is_file, places), None)
    expect(
        found is not None,
        f"class names unknown: none of {', '.join(map(str, places))} is there; expected one, or a file of names as "
        "third part, yolo:IMAGES:LABELS:NAMES",
    )
    return found


def _places_of_names(labels: Path) -> list[Path]:
    return [
        folder / name
        for folder in (labels, labels.parent, labels.parent.parent)
        for name in (NAMES_IN_LABELS, "data.yaml")
    ]


def read_names(file: Path) -> list[str]:
    """Classes by number: the lines of a text file, or ``names`` of the YAML file that YOLO is trained with.

    Raises:
        UserError: no such file, or no names in it.
    """
    expect(file.is_file(), f"file of class names {file} not found: expected a name in each line, or YOLO's YAML")
    try:
        text = file.read_text(encoding="utf-8")
        names = yaml.safe_load(text)["names"] if file.suffix in (".yaml", ".yml") else text.splitlines()
    except (OSError, ValueError, YAMLError, KeyError, TypeError) as error:
        raise UserError(f"{file} holds no class names ({first_line(error)}): expected one for each class") from error
    if isinstance(names, dict) and sorted(map(str, names)) == sorted(map(str, range(len(names)))):
        names = [{str(key): name for key, name in names.items()}[str(n)] for n in range(len(names))]
    names = [str(name).strip() for name in names] if isinstance(names, list) else []
    while names and not names[-1]:
        names.pop()
    sound = bool(names) and all(names) and len(set(names)) == len(names)
    expect(sound, f"{file} holds no class names: expected different ones, of the classes 0, 1, 2 and so on")
    return names


def _read_objects(file: Path, width: int, height: int, num_classes: int) -> list[dict]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({first_line(error)}): expected a file of text") from error
    objects = []
    for number, line in enumerate(lines, start=1):
        if words := line.split():
            try:
                objects.append(_object(words, width, height, num_classes))
            except ValueError as error:
                raise UserError(f"{file}, line {number}: {error}") from error
    return objects


def _object(words: list[str], width: int, height: int, num_classes: int) -> dict:
    """Detectron2's form of a line. Raises ValueError, which says what is wrong with it."""
    label, values = words[0], [float(word) for word in words[1:]]
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
        return {"category_id": int(label), "bbox": box, "bbox_mode": BoxMode.XYWH_ABS}
    outline = [value * (height if n % 2 else width) for n, value in enumerate(values)]
    xs, ys = outline[::2], outline[1::2]
    box = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
    return {"category_id": int(label), "bbox": box, "bbox_mode": BoxMode.XYWH_ABS, "segmentation": [outline]}
