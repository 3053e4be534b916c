"""Data sets with boxes in a folder of XML files as Pascal VOC's, one for each image, as labelling tools write them."""

import logging
from pathlib import Path
from xml.etree import ElementTree

from revisit.data.box_datasets import read_voc_annotation, voc_box, voc_size
from revisit.data.image_folders import Records, load_folder
from revisit.errors import expect

from detectron2.data import MetadataCatalog

logger = logging.getLogger(__name__)


def load_voc_xml(images: Path, annotations: Path, name: str) -> Records:
    """Every image below ``images``, with the objects of the XML file at its place below ``annotations``.

    The classes are the names that occur, sorted; they become those of the data set ``name``. An image without a file
    shows nothing.

    Raises:
        UserError: no images; files of which none is an image's, that are no such XML, or with an object without a box.
    """
    expect(annotations.is_dir(), f"folder of XML files {annotations} not found")
    records, trees = load_folder(images), {}
    for record in records:
        file = annotations / Path(record["file_name"]).relative_to(images).with_suffix(".xml")
        if file.is_file():
            trees[file] = read_voc_annotation(file)
        record["annotations"] = file
    check_used(annotations, images, set(annotations.rglob("*.xml")), set(trees))
    classes = sorted({_class_of(thing, file) for file, tree in trees.items() for thing in tree.findall("object")})
    expect(classes, f"{annotations} has no object in {len(trees)} XML files: expected some, with a name and a bndbox")
    MetadataCatalog.get(name).set(thing_classes=classes)
    for number, record in enumerate(records):
        file, image = record["annotations"], Path(record["file_name"])
        things = trees[file].findall("object") if file in trees else []
        record |= {"image_id": number, **voc_size(trees.get(file), file, image)}
        record["annotations"] = [voc_box(thing, file, tuple(classes)) for thing in things]
    return records


def check_used(labels: Path, images: Path, files: set[Path], used: set[Path]) -> None:
    """Warn of files of labels that belong to no image; raises UserError if that is all of them."""
    lost = sorted(files - used)
    found = f"{labels}: {len(lost)} of {len(files)} files of labels belong to no image below {images}"
    expect(bool(used) or not files, f"{found}: expected the same names, and the same folders")
    if lost:
        logger.warning(f"{found}, such as {lost[0].name}")


def _class_of(thing: ElementTree.Element, file: Path) -> str:
    name = (thing.findtext("name") or "").strip()
    expect(bool(name), f"{file} has an object without a name: expected the name of its class")
    return name
