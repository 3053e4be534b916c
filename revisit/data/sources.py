"""The two tables of data: the kinds that KIND:PATH names, and the data sets with a fixed name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from revisit.data import classification_datasets as labels
from revisit.data.box_datasets import VOC_CLASSES, coco_metadata, load_coco, load_voc, voc_metadata
from revisit.data.image_folders import (
    Records,
    class_folders,
    class_folders_metadata,
    load_class_folders,
    load_folder,
    load_list,
)
from revisit.data.pixel_datasets import (
    CITYSCAPES_CLASSES,
    NYUD_CLASSES,
    VOC_PIXEL_CLASSES,
    load_cityscapes,
    load_nyud,
    load_voc_segmentation,
    segmentation_metadata,
)
from revisit.data.shards import load_shards


@dataclass(frozen=True)
class Kind:
    """A layout of files, which KIND:PATH names wherever it lies."""

    form: str  # what PATH consists of, between colons
    load: Callable[..., Records]  # of those parts: texts for SPLIT and URL, else paths
    metadata: dict | Callable[..., dict] = field(default_factory=dict)  # or what gives it for the same parts


@dataclass(frozen=True)
class DataSource:
    """A data set with a fixed name."""

    where: str | tuple[str, ...]  # under the folder of all data sets; of several places the first that is there
    load: Callable[[Path], Records]
    num_images: int | None = None  # as published
    classes: Sequence[str] | Callable[[Path], Sequence[str]] = ()  # their names, or what reads them with the records
    made_by: str = ""  # the script that completes the download
    metadata: dict = field(default_factory=dict)


def by_split(
    name: str, where: str, load: Callable[..., Records], sizes: dict[str, int | None], **rest: object
) -> dict[str, DataSource]:
    """Sources called NAME_SPLIT, a place each where ``where`` has "{split}"; else ``load`` takes the split."""
    return {
        f"{name}_{split}": DataSource(
            where.format(split=split), load if "{split}" in where else partial(load, split=split), size, **rest
        )
        for split, size in sizes.items()
    }


def by_split_of_kind(
    name: str, where: str, kind: str, sizes: dict[str, int | None], made_by: str, **own_metadata: object
) -> dict[str, DataSource]:
    """As ``by_split``, of a kind FOLDER:SPLIT."""
    metadata = KINDS[kind].metadata | own_metadata
    return by_split(name, where, KINDS[kind].load, sizes, made_by=made_by, metadata=metadata)


KINDS = {
    "folder": Kind("PATH", load_folder),
    "list": Kind("PATH", load_list),
    "class_folders": Kind("PATH", load_class_folders, class_folders_metadata),
    "shards": Kind("URL", load_shards),
    "voc": Kind("FOLDER:SPLIT", load_voc, voc_metadata),
    "coco": Kind("FOLDER_OF_IMAGES:ANNOTATIONS.json", load_coco, coco_metadata),
    "voc_segmentation": Kind("FOLDER:SPLIT", load_voc_segmentation, segmentation_metadata(VOC_PIXEL_CLASSES)),
    "nyud_segmentation": Kind(
        "FOLDER:SPLIT", partial(load_nyud, task="segmentation"), segmentation_metadata(NYUD_CLASSES, label_offset=1)
    ),
    "nyud_depth": Kind("FOLDER:SPLIT", partial(load_nyud, task="depth"), {"evaluator_type": "depth"}),
    "cityscapes": Kind("FOLDER:SPLIT", load_cityscapes, segmentation_metadata(CITYSCAPES_CLASSES)),
}

# Subsets of the paper's data-bias study, one list of image paths each, which scripts in datasets/ write. The paper
# prints thousands; "BDD100K 90K" is train 70K + test 20K (inferred).
SUBSETS = {
    "imagenet_118k": 118000, "imagenet_236k": 236000, "imagenet_472k": 472000, "imagenet_944k": 944000,
    "imagenet_118k_lt": 118090,
    "openimages_118k": 118000, "openimages_236k": 236000, "openimages_472k": 472000, "openimages_944k": 944000,
    "bdd100k_90k": 90000,
}  # fmt: skip
CIFAR10 = {
    f"cifar10_{split}": DataSource(
        (f"cifar10/{split}", "cifar-10-batches-py"),
        partial(labels.load_cifar10, split=split),
        size,
        labels.CIFAR10_CLASSES,
    )
    for split, size in (("train", 50000), ("test", 10000))
}
VOC_2007 = {"train": 2501, "val": 2510, "trainval": 5011, "test": 4952}
NYUD = {"train": 795, "val": 654}

# fmt: off
SOURCES: dict[str, DataSource] = {
    "coco_2017_train_images": DataSource("coco/train2017", load_folder, 118287),
    **{name: DataSource(f"subsets/{name}.txt", load_list, size) for name, size in SUBSETS.items()},
    **by_split("imagenet", "imagenet/{split}", load_class_folders, {"train": 1281167, "val": 50000},
               classes=class_folders),
    **by_split("places365", "places365_standard/{split}", load_class_folders, {"train": 1803460, "val": 36500},
               classes=class_folders),
    **CIFAR10,
    **by_split("food101", "food-101", labels.load_food101, {"train": 75750, "test": 25250},
               classes=labels.food101_classes),
    **by_split("cars", "stanford_cars", labels.load_cars, {"train": 8144, "test": 8041}, classes=labels.cars_classes),
    **by_split("pets", "oxford-iiit-pet", labels.load_pets, {"trainval": 3680, "test": 3669},
               classes=labels.pets_classes),
    **by_split("sun397", "SUN397", labels.load_sun397, {"train": 19850, "test": 19850}, classes=labels.sun397_classes),
    **by_split("voc_2007_labels", "VOC2007", labels.load_voc_labels, VOC_2007, classes=lambda path: VOC_CLASSES),
    **by_split_of_kind("voc_2012_sem_seg", "VOC2012", "voc_segmentation", {"train_aug": 10582, "val": 1449},
                       "datasets/prepare_voc_train_aug.py"),
    **by_split_of_kind("nyud_segmentation", "NYUD_MT", "nyud_segmentation", NYUD, "datasets/prepare_nyud.py"),
    **by_split_of_kind("nyud_depth", "NYUD_MT", "nyud_depth", NYUD, "datasets/prepare_nyud.py"),
    **by_split_of_kind("cityscapes_fine_sem_seg", "cityscapes", "cityscapes", {"train": 2975, "val": 500},
                       "datasets/prepare_cityscapes.py", evaluator_type="cityscapes_sem_seg"),
}
# fmt: on

# Data sets that Detectron2 registers, and their published sizes.
DETECTION_SIZES = {
    "voc_2007_trainval": 5011, "voc_2012_trainval": 11540, "voc_2007_test": 4952,
    "coco_2017_train": 118287, "coco_2017_val": 5000,
}  # fmt: skip
