"""The data sets with a fixed name, which lie under the folder of all data sets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from revisit.data.sources.image_folders import class_folders, load_class_folders, load_folder, load_list
from revisit.data.sources.layouts import LabelLayout, LabelledSet
from revisit.data.sources.pixel_datasets import CITYSCAPES, NYUD_DEPTH, NYUD_SEGMENTATION, VOC_SEGMENTATION
from revisit.data.sources.records import Records


@dataclass(frozen=True)
class DataSource:
    """A data set with a fixed name."""

    where: str | tuple[str, ...]  # under the folder of all data sets; of several places the first that is there
    load: Callable[[Path], Records | LabelledSet]
    num_images: int | None = None  # as published
    classes: Sequence[str] | Callable[[Path], Sequence[str]] = ()  # their names, or what reads them with the records
    made_by: str = ""  # the script that completes the download
    metadata: dict = field(default_factory=dict)
    places: Callable[[], dict] = dict  # metadata that name files, asked for whenever the data set is


def by_split(
    name: str,
    where: str,
    load: Callable[..., Records],
    classes: Sequence[str] | Callable[[Path], Sequence[str]] = (),
    **sizes: int | None,
) -> dict[str, DataSource]:
    """Sources called NAME_SPLIT, one folder per split where ``where`` has "{split}"; else ``load`` takes the split."""
    loads = {split: load if "{split}" in where else partial(load, split=split) for split in sizes}
    return {f"{name}_{s}": DataSource(where.format(split=s), loads[s], sizes[s], classes) for s in sizes}


def by_split_of_layout(
    name: str, where: str, layout: LabelLayout, made_by: str, own_metadata: dict | None = None, /, **sizes: int | None
) -> dict[str, DataSource]:
    """As ``by_split``, of a layout FOLDER:SPLIT with labels or depth per pixel."""
    metadata = layout.metadata | (own_metadata or {})
    sources = by_split(name, where, layout.load, **sizes)
    return {name: replace(source, made_by=made_by, metadata=metadata) for name, source in sources.items()}


# Subsets of the paper's data-bias study, one list of image paths each, which scripts in datasets/ write. The paper
# prints thousands; "BDD100K 90K" is train 70K + test 20K (inferred).
SUBSETS = {
    "imagenet_118k": 118000, "imagenet_236k": 236000, "imagenet_472k": 472000, "imagenet_944k": 944000,
    "imagenet_118k_lt": 118090,
    "openimages_118k": 118000, "openimages_236k": 236000, "openimages_472k": 472000, "openimages_944k": 944000,
    "bdd100k_90k": 90000,
}  # fmt: skip
PREPARE_VOC, PREPARE_NYUD = "datasets/prepare_voc_train_aug.py", "datasets/prepare_nyud.py"
PREPARE_CITYSCAPES = "datasets/prepare_cityscapes.py"
CITYSCAPES_EVAL = {"evaluator_type": "cityscapes_sem_seg"}

SOURCES: dict[str, DataSource] = {
    "coco_2017_train_images": DataSource("coco/train2017", load_folder, 118287),
    **{name: DataSource(f"subsets/{name}.txt", load_list, size) for name, size in SUBSETS.items()},
    **by_split("imagenet", "imagenet/{split}", load_class_folders, class_folders, train=1281167, val=50000),
    **by_split("places365", "places365_standard/{split}", load_class_folders, class_folders, train=1803460, val=36500),
    **by_split_of_layout("voc_2012_sem_seg", "VOC2012", VOC_SEGMENTATION, PREPARE_VOC, train_aug=10582, val=1449),
    **by_split_of_layout("nyud_segmentation", "NYUD_MT", NYUD_SEGMENTATION, PREPARE_NYUD, train=795, val=654),
    **by_split_of_layout("nyud_depth", "NYUD_MT", NYUD_DEPTH, PREPARE_NYUD, train=795, val=654),
    **by_split_of_layout(
        "cityscapes_fine_sem_seg",
        "cityscapes",
        CITYSCAPES,
        PREPARE_CITYSCAPES,
        CITYSCAPES_EVAL,
        train=2975,
        val=500,
    ),
}

# Data sets that Detectron2 registers, and their published sizes.
DETECTION_SIZES = {
    "voc_2007_trainval": 5011, "voc_2007_test": 4952, "voc_2012_trainval": 11540,
    "coco_2017_train": 118287, "coco_2017_val": 5000,
}  # fmt: skip
