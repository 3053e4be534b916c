"""The names under which training knows ToyScenes, drawn to toy_scenes/ in the folder of all data sets."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from projects.ToyScenes.classes import CLASS_NAMES
from revisit.data.box_datasets import load_voc, voc_metadata
from revisit.data.catalog import datasets_root, register_source
from revisit.data.classification_datasets import labelled_by_class, load_voc_labels
from revisit.data.image_folders import Records, load_class_folders, load_folder
from revisit.data.sources import DataSource, by_split, by_split_of_kind
from revisit.data.split_files import read_split

DRAWN_BY = "projects/ToyScenes/make_toy_scenes.py"
PIXEL_CLASSES = ["background", *CLASS_NAMES]
# Masks have NYUD's 40 ids, so that models of both have one shape.
NYUD_CLASSES = [*PIXEL_CLASSES, *(f"unused {n}" for n in range(len(PIXEL_CLASSES) + 1, 41))]


def load_classification(path: Path, split: str) -> Records:
    """Object-centric images by {train,val,test}.txt, lines of FOLDER/CLASS/FILE."""
    names = read_split(path / f"{split}.txt")
    return labelled_by_class(path, [(name, Path(name).parent.name) for name in names], CLASS_NAMES)


def _boxes(split: str) -> DataSource:
    where = "toy_scenes/VOC2007"
    metadata = voc_metadata(datasets_root() / where, split, CLASS_NAMES)
    return DataSource(where, partial(load_voc, split=split, classes=CLASS_NAMES), metadata=metadata)


_TRAIN_VAL = dict.fromkeys(("train", "val"))
# fmt: off
SOURCES = {
    "toy_scenes_train": DataSource("toy_scenes/coco/train2017", load_folder),
    **by_split("toy_objects", "toy_scenes/object_centric/{split}", partial(load_class_folders, classes=CLASS_NAMES),
               dict.fromkeys(("train", "heldout")), classes=CLASS_NAMES),
    **by_split("toy_classification", "toy_scenes/object_centric", load_classification,
               dict.fromkeys(("train", "val", "test")), classes=CLASS_NAMES),
    **{f"toy_voc_{split}": _boxes(split) for split in ("trainval", "test")},
    **by_split("toy_voc_labels", "toy_scenes/VOC2007", partial(load_voc_labels, classes=CLASS_NAMES),
               dict.fromkeys(("trainval", "test")), classes=CLASS_NAMES),
    **by_split_of_kind("toy_voc_sem_seg", "toy_scenes/VOC2007", "voc_segmentation",
                       dict.fromkeys(("train_aug", "val")), DRAWN_BY, stuff_classes=PIXEL_CLASSES),
    **by_split_of_kind("toy_nyud_segmentation", "toy_scenes/NYUD_MT", "nyud_segmentation", _TRAIN_VAL, DRAWN_BY,
                       stuff_classes=NYUD_CLASSES),
    **by_split_of_kind("toy_nyud_depth", "toy_scenes/NYUD_MT", "nyud_depth", _TRAIN_VAL, DRAWN_BY),
    **by_split_of_kind("toy_cityscapes", "toy_scenes/cityscapes", "cityscapes", _TRAIN_VAL, DRAWN_BY),
}
# fmt: on
for _name, _source in SOURCES.items():
    register_source(_name, _source)
