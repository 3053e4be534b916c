"""The names under which training knows ToyScenes, drawn to toy_scenes/ in the folder of all data sets."""

from functools import partial
from pathlib import Path

from projects.FrozenEvaluations.classification_datasets import labelled_by_class, load_voc_labels
from projects.ToyScenes.classes import CLASS_NAMES
from revisit.data.sources.catalog import datasets_root, register_source
from revisit.data.sources.coco_boxes import coco_metadata, load_coco
from revisit.data.sources.image_folders import load_class_folders, load_folder
from revisit.data.sources.layouts import LabelledSet
from revisit.data.sources.named_sets import DataSource, by_split, by_split_of_layout
from revisit.data.sources.pixel_datasets import CITYSCAPES, NYUD_DEPTH, NYUD_SEGMENTATION, VOC_SEGMENTATION
from revisit.data.sources.records import Records
from revisit.data.sources.split_files import read_split
from revisit.data.sources.voc_boxes import load_voc, voc_places

OBJECTS, VOC, NYUD = (f"toy_scenes/{folder}" for folder in ("object_centric", "VOC2007", "NYUD_MT"))
COCO = "toy_scenes/coco/{}"
DRAWN_BY = "projects/ToyScenes/make_toy_scenes.py"
VOC_CLASSES = ["background", *CLASS_NAMES]
# Masks have NYUD's 40 ids, so that models of both have one shape.
NYUD_CLASSES = [*VOC_CLASSES, *(f"unused {n}" for n in range(len(VOC_CLASSES) + 1, 41))]


def _load_listed(path: Path, split: str) -> Records:
    """Object-centric images by {train,val,test}.txt, lines of FOLDER/CLASS/FILE."""
    names = read_split(path / f"{split}.txt")
    return labelled_by_class(path, [(name, Path(name).parent.name) for name in names], CLASS_NAMES)


_load_objects = partial(load_class_folders, classes=CLASS_NAMES)
_load_voc_labels = partial(load_voc_labels, classes=CLASS_NAMES)


def _boxes(split: str) -> DataSource:
    def places() -> dict:
        return voc_places(datasets_root() / VOC, split)

    return DataSource(VOC, partial(load_voc, split=split, classes=CLASS_NAMES), classes=CLASS_NAMES, places=places)


def _coco(split: str) -> DataSource:
    """Boxes and masks in COCO's format."""
    images = COCO.format(f"{split}2017")
    annotations = COCO.format(f"annotations/instances_{split}2017.json")

    def load(path: Path) -> LabelledSet:
        return load_coco(path, datasets_root() / annotations)

    def places() -> dict:
        return coco_metadata(datasets_root() / images, datasets_root() / annotations)

    return DataSource(images, load, places=places)


_TRAIN_VAL = {"train": None, "val": None}
SOURCES = {
    "toy_scenes_train": DataSource(COCO.format("train2017"), load_folder),
    **{name: _coco(name.removeprefix("toy_coco_")) for name in ("toy_coco_train", "toy_coco_val")},
    **by_split("toy_objects", f"{OBJECTS}/{{split}}", _load_objects, CLASS_NAMES, train=None, heldout=None),
    **by_split("toy_classification", OBJECTS, _load_listed, CLASS_NAMES, train=None, val=None, test=None),
    **{f"toy_voc_{split}": _boxes(split) for split in ("trainval", "test")},
    **by_split("toy_voc_labels", VOC, _load_voc_labels, CLASS_NAMES, trainval=None, test=None),
    **by_split_of_layout(
        "toy_voc_sem_seg", VOC, VOC_SEGMENTATION, DRAWN_BY, {"stuff_classes": VOC_CLASSES}, train_aug=None, val=None
    ),
    **by_split_of_layout(
        "toy_nyud_segmentation", NYUD, NYUD_SEGMENTATION, DRAWN_BY, {"stuff_classes": NYUD_CLASSES}, **_TRAIN_VAL
    ),
    **by_split_of_layout("toy_nyud_depth", NYUD, NYUD_DEPTH, DRAWN_BY, **_TRAIN_VAL),
    **by_split_of_layout("toy_cityscapes", "toy_scenes/cityscapes", CITYSCAPES, DRAWN_BY, **_TRAIN_VAL),
}
for _name, _source in SOURCES.items():
    register_source(_name, _source)
