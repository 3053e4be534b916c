"""Data sets with boxes: trees in Pascal VOC's layout, and files in COCO's format.

A record is Detectron2's: ``file_name``, ``image_id``, ``height`` and ``width`` in px, and ``annotations``.
"""

import json
import logging
import os
from pathlib import Path
from xml.etree import ElementTree

from pycocotools.mask import frPyObjects

from revisit.data.image_folders import Records, existing, read_split
from revisit.data.reader import read_size
from revisit.errors import UserError, expect, first_line

from detectron2.data import MetadataCatalog
from detectron2.data.datasets.pascal_voc import CLASS_NAMES
from detectron2.structures import BoxMode

VOC_CLASSES = tuple(CLASS_NAMES)
LARGEST = 2**53  # of whole numbers that a float holds exactly
FAR = 2**20  # px, beyond any image; pycocotools draws an outline step by step, and dies of one without an end

logger = logging.getLogger(__name__)


def load_voc(path: Path, split: str, classes: tuple[str, ...] = VOC_CLASSES) -> Records:
    """Boxes of a tree in Pascal VOC's layout, by ImageSets/Main/SPLIT.txt.

    Raises:
        UserError: see read_split and read_voc_annotation; an image that is not there, an object of another class, an
            object without a box.
    """
    records = []
    for name in read_split(path / "ImageSets" / "Main" / f"{split}.txt"):
        file, image = path / "Annotations" / f"{name}.xml", path / "JPEGImages" / f"{name}.jpg"
        tree = read_voc_annotation(file, split)
        records.append({
            "file_name": str(image),
            "image_id": name,
            **voc_size(tree, file, image),
            "annotations": [voc_box(thing, file, classes) for thing in tree.findall("object")],
        })  # fmt: skip
    return existing(records)


def read_voc_annotation(file: Path, split: str = "") -> ElementTree.Element:
    """The XML of an image, which a split may name. Raises UserError where it is missing, or no XML."""
    expect(os.path.isfile(file), f"{file} not found, but the split {split} names {file.stem}")
    try:
        return ElementTree.parse(file).getroot()
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # the latter: encodings that are not known
        message = f"{file} cannot be read ({first_line(error)}): expected one of Pascal VOC's annotations"
        raise UserError(message) from error


def voc_metadata(path: Path, split: str, classes: tuple[str, ...] = VOC_CLASSES) -> dict:
    """What Detectron2's evaluator of Pascal VOC has to know."""
    # It knows two years, which differ in how AP is integrated; 2007 means 11 points.
    place = {"dirname": str(path), "split": split, "year": 2007}
    return {"evaluator_type": "pascal_voc", "thing_classes": list(classes), **place}


def voc_size(tree: ElementTree.Element | None, file: Path, image: Path) -> dict[str, int]:
    """``height`` and ``width``, of the image itself where there is no annotation, or it has none."""
    texts = [tree.findtext(f"size/{side}") if tree is not None else None for side in ("height", "width")]
    if None in texts:
        return read_size(image)
    try:
        height, width = map(int, texts)
    except ValueError as error:
        raise UserError(f"{file} has a height of {texts[0]!r} and a width of {texts[1]!r}: expected pixels") from error
    return {"height": height, "width": width} if height and width else read_size(image)


def voc_box(thing: ElementTree.Element, file: Path, classes: tuple[str, ...]) -> dict:
    """An object in Detectron2's form. Raises UserError for one of another class, or without a box."""
    label = (thing.findtext("name") or "").strip()
    other = "" if classes != VOC_CLASSES else "; boxes of other classes: voc_xml:IMAGES:XML_FOLDER"
    expect(
        label in classes, f"{file} names an object of the class {label!r}, expected one of {', '.join(classes)}{other}"
    )
    texts = [thing.findtext(f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
    try:
        x0, y0, x1, y1 = (float(text or "") for text in texts)
    except ValueError as error:
        found = ", ".join(map(str, texts))
        message = f"{file} has a {label} without a box (xmin, ymin, xmax, ymax: {found}): expected four numbers, in px"
        raise UserError(message) from error
    # VOC counts pixels from 1 and includes the last one.
    box = [x0 - 1.0, y0 - 1.0, x1, y1]
    return {"category_id": classes.index(label), "bbox": box, "bbox_mode": BoxMode.XYXY_ABS}


def check_used(labels: Path, images: Path, files: set[Path], used: set[Path]) -> None:
    """Warn of files of labels that belong to no image; raises UserError if that is all of them."""
    lost = sorted(files - used)
    found = f"{labels}: {len(lost)} of {len(files)} files of labels belong to no image below {images}"
    expect(bool(used) or not files, f"{found}: expected the same names, and the same folders")
    if lost:
        logger.warning(f"{found}, such as {lost[0].name}")


def load_coco(images: Path, annotations: Path, name: str) -> Records:
    """Boxes and masks of a file in COCO's format; its classes become those of the data set ``name``.

    Images without ``width`` and ``height`` have those of their file. An annotation also keeps its ``id``.

    Raises:
        UserError: the file is none of COCO's, or an image that it names is not there.
    """
    for path in (images, annotations):
        expect(path.exists(), f"data set {name!r}: {path} not found")
    content = _read_json(annotations)
    categories, pictures, things = (_by_id(content, part, annotations) for part in _PARTS)
    expect(categories and pictures, f"{annotations} has no {'images' if categories else 'categories'}: expected some")
    places = {id_: place for place, id_ in enumerate(sorted(categories))}
    classes = [categories[id_].get("name") for id_ in places]
    expect(all(isinstance(label, str) for label in classes), f"{annotations}: a category without a name: expected text")
    MetadataCatalog.get(name).set(thing_classes=classes, thing_dataset_id_to_contiguous_id=places)
    records = _coco_images(images, annotations, pictures)
    of_image, lost = {record["image_id"]: record["annotations"] for record in records}, 0
    for thing in things.values():
        annotation = _coco_annotation(thing, places, annotations)
        lost += thing["image_id"] not in of_image
        if annotation and thing["image_id"] in of_image:
            of_image[thing["image_id"]].append(annotation)
    found = f"{annotations}: {lost} of {len(things)} annotations are of none of its images"
    expect(lost < len(things) or not lost, f"{found}: expected image_id to be the id of one, both numbers")
    if lost:
        logger.warning(f"{found}, and left out")
    return records


def _coco_images(folder: Path, annotations: Path, pictures: dict[int | str, dict]) -> Records:
    """Records, sorted by id, whose ``annotations`` are empty."""
    records = []
    for id_, picture in sorted(pictures.items()):
        file, sides = picture.get("file_name"), {side: picture.get(side) for side in ("height", "width")}
        expect(isinstance(file, str) and bool(file), f"{annotations}: image {id_} has no file_name: expected text")
        sound = [_is_number(side) and side > 0 for side in sides.values()]
        found = f"{annotations}: image {id_} has height {_short(sides['height'])} and width {_short(sides['width'])}"
        expect(all(sound) or list(sides.values()) == [None, None], f"{found}: expected pixels, or neither of them")
        records.append({"file_name": os.path.join(folder, file), "image_id": id_, **sides, "annotations": []})
    for record in existing(records):
        if record["height"] is None:
            record.update(read_size(record["file_name"]))
    return records


def coco_metadata(images: Path, annotations: Path) -> dict:
    """What Detectron2's evaluator of COCO has to know."""
    return {"evaluator_type": "coco", "image_root": str(images), "json_file": str(annotations)}


_PARTS = ("categories", "images", "annotations")


def _read_json(file: Path) -> dict:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} holds no annotations in COCO's format ({first_line(error)})") from error
    parts = isinstance(content, dict) and all(isinstance(content.get(part, []), list) for part in _PARTS)
    expect(parts, f"{file} holds no annotations in COCO's format: expected an object with lists {', '.join(_PARTS)}")
    return content


def _by_id(content: dict, part: str, file: Path) -> dict[int | str, dict]:
    """The entries of one list by their ids; only those of images may be texts, as long as all are."""
    entries = {}
    for place, entry in enumerate(content.get(part, [])):
        id_ = entry.get("id") if isinstance(entry, dict) else None
        whole = type(id_) is int and abs(id_) < LARGEST
        if not (whole or (part == "images" and isinstance(id_, str))):
            found = f"has the id {_short(id_)}" if isinstance(entry, dict) else f"is {_short(entry)}"
            raise UserError(f"{file}: {part}[{place}] {found}: expected an object whose id is a whole number")
        if id_ in entries:
            raise UserError(f"{file}: {part}[{place}] has the id {id_!r} of another: expected different ones")
        entries[id_] = entry
    kinds = {type(id_).__name__ for id_ in entries}
    expect(len(kinds) < 2, f"{file}: ids of {part} are numbers and texts: expected numbers")
    return entries


def _coco_annotation(thing: dict, places: dict[int, int], file: Path) -> dict | None:
    """Detectron2's form of an annotation; None where its mask has no polygon of three points and more."""
    found = {key: thing[key] for key in ("id", "iscrowd", "bbox") if key in thing}
    mask, points = thing.get("segmentation"), thing.get("keypoints")
    for key, sound, wanted in (
        ("image_id", type(thing.get("image_id")) in (int, str), "the id of an image"),
        ("bbox", _are_numbers(thing.get("bbox")) and len(thing["bbox"]) == 4, "[x, y, width, height] in px"),
        ("category_id", type(thing.get("category_id")) is int and thing["category_id"] in places, "a category's id"),
        ("iscrowd", type(thing.get("iscrowd", 0)) in (int, bool) and thing.get("iscrowd", 0) in (0, 1), "0 or 1"),
        ("ignore", thing.get("ignore", 0) == 0, "iscrowd in its place"),
        (
            "segmentation",
            not mask or _is_mask(mask),
            "lists of x, y, x, y, ... in px, or run lengths of an image",
        ),
        ("keypoints", not points or (_are_numbers(points) and len(points) % 3 == 0), "x, y, visibility of each"),
    ):
        if not sound:
            value = _short(thing.get(key))
            raise UserError(f"{file}: annotation {thing['id']} has the {key} {value}: expected {wanted}")
    found |= {"category_id": places[thing["category_id"]], "bbox_mode": BoxMode.XYWH_ABS}
    if mask and isinstance(mask, dict):
        found["segmentation"] = frPyObjects(mask, *mask["size"]) if isinstance(mask["counts"], list) else mask
    elif mask:
        found["segmentation"] = drawable(mask)
        if not found["segmentation"]:
            return None
    if points:
        # COCO's are indices of pixels, Detectron2's lie in their middle.
        found["keypoints"] = [value if n % 3 == 2 else value + 0.5 for n, value in enumerate(points)]
    return found


def drawable(polygons: list[list[float]]) -> list[list[float]]:
    """Those of three points and more."""
    return [points for points in polygons if len(points) % 2 == 0 and len(points) >= 6]


def _is_mask(mask: object) -> bool:
    """Polygons, or a dict of run lengths."""
    if not isinstance(mask, dict):
        return isinstance(mask, list) and all(_are_numbers(p) and all(abs(v) < FAR for v in p) for p in mask)
    size, counts = mask.get("size"), mask.get("counts")
    sized = isinstance(size, list) and len(size) == 2 and all(type(side) is int and 0 < side < 2**16 for side in size)
    if not isinstance(counts, list):
        return sized and isinstance(counts, str)
    return sized and all(type(n) is int and n >= 0 for n in counts) and sum(counts) == size[0] * size[1]


def _are_numbers(values: object) -> bool:
    return isinstance(values, list) and all(map(_is_number, values))


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < LARGEST)


def _short(value: object) -> str:
    """What was found, in a message of one line."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]} ..."
