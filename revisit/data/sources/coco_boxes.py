"""Boxes and masks in COCO's format, the one form that all layouts of boxes take: ``coco:FOLDER_OF_IMAGES:FILE.json``.

A layout of one's own is a function that reads the boxes of one file, which ``load_box_files`` calls for each image, or
a dict in COCO's format, which ``load_coco_dict`` takes. ``coco_truth`` says what of it is the truth.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pycocotools import mask as coco_mask

from revisit.data.images.reader import size_if_known
from revisit.data.sources.coco_truth import read_coco, true_coco
from revisit.data.sources.label_files import label_files
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.data.sources.records import NOT_SCORED, WITHOUT_LABELS
from revisit.errors import expect

from detectron2.structures import BoxMode

COCO_METADATA = {"evaluator_type": "coco"}  # of boxes that COCO's evaluator scores
_KEPT, _MODE = ("iscrowd", "bbox", "keypoints"), BoxMode.XYWH_ABS


def load_coco(images: Path, annotations: Path) -> LabelledSet:
    """Boxes and masks of a file in COCO's format, with its classes.

    Raises:
        UserError: the file is none of COCO's, or an image that it names is not there.
    """
    expect(not annotations.is_dir(), f"{annotations} is a folder: expected coco:FOLDER_OF_IMAGES:FILE.json")
    return load_coco_dict(read_coco(annotations), images, str(annotations))


def load_box_files(
    images: Path,
    labels: Path,
    suffix: str,
    read: Callable[[Path, Path], tuple[dict[str, int], list[dict]]],
    classes: Sequence[str] = (),
) -> LabelledSet:
    """Every image below ``images``, with the objects of the file at its place below ``labels``.

    An image without a file shows nothing.

    Args:
        suffix: of the files of labels, such as ".json".
        read: of such a file and its image: the ``height`` and ``width`` of the image, px, and its objects. An object
            has the ``name`` of its class, a ``bbox`` [x, y, width, height] in px, and perhaps a ``segmentation`` and
            ``iscrowd`` as in COCO's format.
        classes: by their numbers; none: the names that occur, sorted.

    Raises:
        UserError: see label_files and true_coco; no object.
    """
    pictures, objects = [], []
    for number, (image, file) in enumerate(label_files(images, labels, suffix).items()):
        size, boxes_of_image = read(file, Path(image)) if file else (size_if_known(image) | {WITHOUT_LABELS: True}, [])
        pictures.append({"id": number, "file_name": os.path.relpath(image, images), **size})
        objects += [{**thing, "image_id": number} for thing in boxes_of_image]
    classes = classes or sorted({thing["name"] for thing in objects})
    expect(bool(classes), f"{labels} has no object in its files (*{suffix}): expected some, with a class and a box")
    ids = {name: number for number, name in enumerate(classes, start=1)}
    for number, thing in enumerate(objects, start=1):
        thing.update(id=number, category_id=ids[thing["name"]])
    categories = [{"id": number, "name": name} for name, number in ids.items()]
    content = {"categories": categories, "images": pictures, "annotations": objects}
    return load_coco_dict(content, images, str(labels))


def load_coco_dict(content: dict, images: Path, source: str) -> LabelledSet:
    """Detectron2's records of a dict in COCO's format, as its own loader makes them, sorted by the images' ids.

    Images' file names are seen from the folder ``images``; ``source`` is what the dict was made of, for messages. The
    metadata are the classes, and as ``left_out`` words for what is no truth. Raises UserError: see true_coco.
    """
    truth, left_out = true_coco(content, images, source)
    del content  # nobody else has that of a file: each annotation's memory is free once its box is made
    classes = sorted(truth["categories"], key=lambda category: category["id"])
    index_of = {category["id"]: index for index, category in enumerate(classes)}
    boxes, folder = defaultdict(list), os.fspath(images)
    for annotation in _drained(truth.pop("annotations", [])):
        boxes[annotation["image_id"]].append(_box(annotation, index_of))
    records = [
        {
            "file_name": os.path.join(folder, picture["file_name"]),
            "height": picture["height"],
            "width": picture["width"],
            "image_id": picture["id"],
            "annotations": boxes[picture["id"]],
            **{key: picture[key] for key in (WITHOUT_LABELS,) if key in picture},
        }
        for picture in sorted(truth["images"], key=lambda picture: picture["id"])
    ]
    names = [category["name"] for category in classes]
    metadata = {"thing_classes": names, "thing_dataset_id_to_contiguous_id": index_of, "left_out": left_out}
    return LabelledSet(records, metadata)


def coco_metadata(images: Path, annotations: Path) -> dict:
    """What the evaluator of COCO has to know."""
    return COCO_METADATA | {"image_root": str(images), "json_file": str(annotations)}


def _drained(entries: list) -> Iterator:
    """Each in its turn, which the list then has no longer."""
    entries.reverse()
    while entries:
        yield entries.pop()


def _box(annotation: dict, index_of: dict) -> dict:
    """Detectron2's form of a true annotation, with the number of its class."""
    box = {key: annotation[key] for key in _KEPT if key in annotation}
    if box.get("iscrowd") and annotation.get(NOT_SCORED) is True:
        box |= {"iscrowd": 0, NOT_SCORED: True}  # of ``in_coco``
    box["category_id"] = index_of[annotation["category_id"]]
    mask = annotation.get("segmentation")
    if mask is not None:
        uncompressed = isinstance(mask, dict) and isinstance(mask["counts"], list)
        box["segmentation"] = coco_mask.frPyObjects(mask, *mask["size"]) if uncompressed else mask
    if points := annotation.get("keypoints"):
        # Files count pixels, Detectron2 has the pixel's centre; every third number says whether the point is seen.
        box["keypoints"] = [v + 0.5 if n % 3 < 2 else v for n, v in enumerate(points)]
    box["bbox_mode"] = _MODE
    return box


LABEL_LAYOUT_REGISTRY.register(LabelLayout("coco", "FOLDER_OF_IMAGES:FILE.json", load_coco, coco_metadata))
