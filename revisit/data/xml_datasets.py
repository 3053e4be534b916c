"""Data sets with boxes in a folder of XML files as Pascal VOC's, one for each image, as labelling tools write them."""

from pathlib import Path
from xml.etree import ElementTree

from revisit.data.box_datasets import check_used, read_voc_annotation, voc_box, voc_size
from revisit.data.image_folders import Records, load_folder
from revisit.errors import expect

from detectron2.data import MetadataCatalog


def load_voc_xml(images: Path, annotations: Path, name: str) -> Records:
    """Every image below ``images``, with the objects of the XML file at its place below ``annotations``.

    The classes are the names that occur, sorted; they become those of the data set ``name``. An image without a file
    shows nothing.

    Raises:
        UserError: no images; files of which none is an image's, that are no such XML, or with an object without a box.
    """
    expect(annotations.is_dir(), f"folder of XML files {annotations} not found")
    records = load_folder(images)
    files = [annotations / Path(record["file_name"]).relative_to(images).with_suffix(".xml") for record in records]
    trees = {file: read_voc_annotation(file) for file in files if file.is_file()}
    check_used(annotations, images, set(annotations.rglob("*.xml")), set(trees))
    classes = sorted({_class_of(thing, file) for file, tree in trees.items() for thing in tree.findall("object")})
    expect(classes, f"{annotations} has no object in {len(trees)} XML files: expected some, with a name and a bndbox")
    MetadataCatalog.get(name).set(thing_classes=classes)
    for number, (record, file) in enumerate(zip(records, files, strict=True)):
        tree = trees.get(file)
        things = [] if tree is None else tree.findall("object")
        record |= {"image_id": number, **voc_size(tree, file, Path(record["file_name"]))}
        record["annotations"] = [voc_box(thing, file, tuple(classes)) for thing in things]
    return records


def _class_of(thing: ElementTree.Element, file: Path) -> str:
    name = (thing.findtext("name") or "").strip()
    expect(bool(name), f"{file} has an object without a name: expected the name of its class")
    return name
