"""Readers of boxes and masks in the layouts of Pascal VOC and COCO: Detectron2's own, with an error in one line."""

from pathlib import Path
from xml.etree import ElementTree

from revisit.data.image_folders import Records
from revisit.errors import UserError, first_line

from detectron2.data.datasets.coco import load_coco_json
from detectron2.data.datasets.pascal_voc import CLASS_NAMES, load_voc_instances

VOC_CLASSES = tuple(CLASS_NAMES)


def load_voc(path: Path, split: str, classes: tuple[str, ...] = VOC_CLASSES) -> Records:
    """Boxes of a tree in Pascal VOC's layout, by ImageSets/Main/SPLIT.txt.

    Raises:
        FileNotFoundError: no such split, or an annotation that is not there.
        UserError: a split of fewer than two images, an object of another class.
    """
    split_file = path / "ImageSets" / "Main" / f"{split}.txt"
    if len(split_file.read_text().split()) < 2:
        raise UserError(f"{split_file} names fewer than two images: Detectron2 reads splits of two and more")
    try:
        return load_voc_instances(str(path), split, classes)
    except ValueError as error:
        raise UserError(f"{path}: {_unknown_class(path, classes)}, expected one of {', '.join(classes)}") from error


def voc_metadata(path: Path, split: str, classes: tuple[str, ...] = VOC_CLASSES) -> dict:
    """What Detectron2's evaluator of Pascal VOC has to know."""
    # It knows two years, which differ in how AP is integrated; 2007 means 11 points.
    return {
        "thing_classes": list(classes), "dirname": str(path), "split": split, "year": 2007,
        "evaluator_type": "pascal_voc",
    }  # fmt: skip


def _unknown_class(path: Path, classes: tuple[str, ...]) -> str:
    """The first annotation with an object of none of ``classes``, in words."""
    for file in sorted((path / "Annotations").glob("*.xml")):
        for name in ElementTree.parse(file).iterfind("object/name"):
            if name.text not in classes:
                return f"Annotations/{file.name} names an object of the class {name.text!r}"
    return "an annotation cannot be read"


def load_coco(images: Path, annotations: Path, name: str) -> Records:
    """Boxes and masks of a file in COCO's format; its classes become those of the data set ``name``.

    Raises:
        UserError: the file is none of COCO's, or an image that it names is not there.
    """
    for path in (images, annotations):
        if not path.exists():
            raise UserError(f"data set {name!r}: {path} not found")
    try:
        records = load_coco_json(str(annotations), str(images), name)
    except (AssertionError, KeyError, OSError, TypeError, ValueError) as error:
        raise UserError(f"{annotations} holds no annotations in COCO's format ({first_line(error)})") from error
    missing = next((record["file_name"] for record in records if not Path(record["file_name"]).is_file()), None)
    if missing:
        raise UserError(f"{annotations} names {missing}, which is not there: expected its images in {images}")
    return records


def coco_metadata(images: Path, annotations: Path) -> dict:
    """What Detectron2's evaluator of COCO has to know."""
    return {"evaluator_type": "coco", "image_root": str(images), "json_file": str(annotations)}
