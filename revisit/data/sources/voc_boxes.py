"""Boxes in a tree of Pascal VOC, which Detectron2's evaluator of Pascal VOC reads itself: ``voc:FOLDER:SPLIT``."""

import re
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from revisit.data.images.image_bytes import first_bytes
from revisit.data.images.reader import size_if_known
from revisit.data.sources.image_folders import require_files
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, TWO_FOLDERS, LabelLayout
from revisit.data.sources.records import NOT_SCORED, Records, sample
from revisit.data.sources.split_files import image_of, read_split
from revisit.errors import expect, translated

from detectron2.data.datasets.pascal_voc import CLASS_NAMES
from detectron2.structures import BoxMode

VOC_CLASSES = tuple(CLASS_NAMES)
CORNERS = ("xmin", "ymin", "xmax", "ymax")
YEAR_OF_FILE, YEAR_OF_PATH = re.compile(rb"<folder>\s*VOC_?(20\d\d)"), re.compile(r"VOC_?(20\d\d)", re.I)
DIFFICULT = {"": False, "unspecified": False, "0": False, "false": False, "1": True, "true": True}


def load_voc(path: Path, split: str, classes: tuple[str, ...] = VOC_CLASSES) -> Records:
    """Boxes of a tree in Pascal VOC's layout, by ImageSets/Main/SPLIT.txt: ``image_id`` is the name in the split.
    Difficult ones are NOT_SCORED."""
    records = []
    split_file = path / "ImageSets" / "Main" / f"{split}.txt"
    expect(split_file.parent.is_dir() or not path.is_dir(), f"split file {split_file} not found; {TWO_FOLDERS}")
    for name in read_split(split_file):
        blank = f"{split_file}: image {name!r} has a blank in its name, at which VOC's files of results end it"
        expect(len(name.split()) == 1, f"{blank}: expected voc_xml:, or another name")
        image = image_of(path / "JPEGImages" / name)
        file = path / "Annotations" / f"{name}.xml"
        size, objects = read_voc_annotation(file, image, classes)
        boxes = [_box_of(thing, classes) for thing in objects]
        records.append({"file_name": str(image), "image_id": name, **size, "annotations": boxes})
    return require_files(records)


def _box_of(thing: "VOCObject", classes: tuple[str, ...]) -> dict:
    """Detectron2's annotation of an object."""
    number = classes.index(thing.label)
    mark = {NOT_SCORED: True} if thing.is_difficult else {}
    return {"category_id": number, "bbox": thing.corners, "bbox_mode": BoxMode.XYXY_ABS, **mark}


def voc_metadata(path: Path, split: str, classes: tuple[str, ...] = VOC_CLASSES) -> dict:
    """What Detectron2's evaluator of Pascal VOC has to know."""
    return {"thing_classes": list(classes), **voc_places(path, split)}


def voc_places(path: Path, split: str) -> dict:
    """Of that, what depends on the files."""
    year = year_of_voc(path, split)
    # It knows two years, which differ in how AP is integrated: 11 points until 2009, then the area under the curve.
    metric = 2012 if year and year >= 2010 else 2007
    tree = {"dirname": str(path), "split": split, "year": metric, "year_is_known": year is not None}
    return {"evaluator_type": "pascal_voc", **tree}


def year_of_voc(path: Path, split: str) -> int | None:
    """The year of a tree by <folder> of some annotations of the split, else by its path; None where neither has one."""
    split_file = path / "ImageSets" / "Main" / f"{split}.txt"
    names = sample(read_split(split_file), 20) if split_file.is_file() else []
    files = [path / "Annotations" / f"{name}.xml" for name in names]
    heads = [first_bytes(file, 1000) for file in files if file.is_file()]
    years = {int(year) for head in heads for year in YEAR_OF_FILE.findall(head)}
    if not years:
        in_path = YEAR_OF_PATH.findall(str(path.resolve()))
        years = set(map(int, in_path[-1:]))
    return years.pop() if len(years) == 1 else None


class VOCObject(NamedTuple):
    """An object of an annotation."""

    label: str
    corners: list[float]  # x0, y0, x1, y1 in px
    is_difficult: bool


def read_voc_annotation(
    file: Path, image: Path, classes: tuple[str, ...] = ()
) -> tuple[dict[str, int], list[VOCObject]]:
    """``height`` and ``width`` in px, and the objects.

    The size is that of ``image`` where the annotation has none. Raises UserError: no XML, an object without a box or of
    no class, or of none of ``classes`` where there are some.
    """
    expected = "expected Pascal VOC's XML; of an image that shows nothing remove the file"
    with translated(f"reading {file}, {expected}", content=True):
        tree = ElementTree.parse(file).getroot()
    with translated(f"reading {file}", content=True):
        objects = [_read_object(element, classes) for element in tree.findall("object")]
        size = {side: int(float(tree.findtext(f"size/{side}") or 0)) for side in ("height", "width")}
    return size if all(size.values()) else size_if_known(image), objects


def _read_object(element: ElementTree.Element, classes: tuple[str, ...]) -> VOCObject:
    label = element.findtext("name", "").strip()
    if not label:
        raise ValueError("an object has no name: expected its class")
    if classes and label not in classes:
        raise ValueError(f"class {label!r}, expected {classes}; voc_xml takes any")
    box = element.find("bndbox")
    if box is None:
        parts = ", ".join(part.tag for part in element)
        raise ValueError(f"object {label!r} has {parts}: expected a bndbox, whose sides are upright")
    x0, y0, x1, y1 = (_px(box, side, label) for side in CORNERS)
    difficult = element.findtext("difficult", "").strip().lower()
    if difficult not in DIFFICULT:
        raise ValueError(f"difficult {difficult!r}, expected one of {', '.join(filter(None, DIFFICULT))}")
    # VOC counts pixels from 1 and includes the last one.
    return VOCObject(label, [x0 - 1.0, y0 - 1.0, x1, y1], DIFFICULT[difficult])


def _px(box: ElementTree.Element, side: str, label: str) -> float:
    text = box.findtext(side, "")
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"object {label!r} has {side} {text!r}: expected a number of px") from error


LABEL_LAYOUT_REGISTRY.register(LabelLayout("voc", "FOLDER:SPLIT", load_voc, voc_metadata))
